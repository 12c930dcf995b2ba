//! The tables of `docs/format.md` as data: name, offset and size of each field.

/// One field of a structure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    pub name: &'static str,
    pub at: usize,
    pub size: usize,
}

const fn field(at: usize, size: usize, name: &'static str) -> Field {
    Field { name, at, size }
}

/// Section 4.
pub const SUPERBLOCK: &[Field] = &[
    field(0, 8, "magic"),
    field(8, 4, "version"),
    field(12, 4, "crc"),
    field(16, 16, "uuid"),
    field(32, 32, "name"),
    field(64, 8, "compat"),
    field(72, 8, "ro_compat"),
    field(80, 8, "incompat"),
    field(88, 8, "generation"),
    field(96, 8, "part_size"),
    field(104, 8, "member_size"),
    field(112, 8, "journal_size"),
    field(120, 8, "state_seq"),
    field(128, 8, "bitmap_offset"),
    field(136, 8, "bitmap_len"),
    field(144, 4, "layout_version"),
    field(148, 4, "chunk"),
    field(152, 4, "block_size"),
    field(156, 4, "epoch"),
    field(160, 4, "members_at"),
    field(164, 2, "members"),
    field(166, 2, "journals"),
    field(168, 2, "role_index"),
    field(170, 1, "role"),
    field(171, 1, "placement"),
    field(172, 1, "phase"),
    field(173, 1, "state"),
    field(174, 1, "marks"),
    field(175, 1, "clean"),
    field(176, 3920, "reserved"),
];

/// Section 5.
pub const ANCHOR: &[Field] = &[
    field(0, 8, "magic"),
    field(8, 4, "version"),
    field(12, 4, "crc"),
    field(16, 16, "uuid"),
    field(32, 8, "generation"),
    field(40, 8, "tail_seq"),
    field(48, 8, "tail_offset"),
    field(56, 8, "head_offset"),
    field(64, 8, "head_number"),
    field(72, 8, "head_seq"),
    field(80, 8, "durable_seq"),
    field(88, 8, "replayed_through"),
    field(96, 4, "epoch"),
    field(100, 4, "closed"),
    field(104, 3992, "reserved"),
];

/// Section 6, the fixed part.
pub const RECORD: &[Field] = &[
    field(0, 8, "magic"),
    field(8, 2, "version"),
    field(10, 1, "kind"),
    field(11, 1, "reserved_a"),
    field(12, 4, "crc"),
    field(16, 16, "uuid"),
    field(32, 4, "epoch"),
    field(36, 4, "count"),
    field(40, 8, "number"),
    field(48, 8, "offset"),
    field(56, 8, "prev_seq"),
    field(64, 8, "first_seq"),
    field(72, 8, "tail_seq"),
    field(80, 8, "tail_offset"),
    field(88, 8, "durable_seq"),
    field(96, 4, "header_len"),
    field(100, 4, "payload_len"),
    field(104, 24, "reserved_b"),
];

/// Section 6, one entry.
pub const ENTRY: &[Field] = &[
    field(0, 1, "op"),
    field(1, 1, "codec"),
    field(2, 2, "flags"),
    field(4, 4, "sectors"),
    field(8, 8, "lba"),
    field(16, 4, "payload_at"),
    field(20, 4, "stored_len"),
    field(24, 8, "reserved"),
];
