//! A reader of ujournal's disks that was written from `docs/format.md` and nothing else.
//!
//! It shares no code with the library: own checksum, own geometry, own scan. Where both read the same
//! bytes they must agree, and where they do not, either the code or the page is wrong. It reads whole
//! images from memory, and is slow and plain. The section numbers are those of the page.

use std::fmt;

const FRAME: u64 = 4096;
const MARGIN: u64 = 1 << 20;
const SECTOR: u64 = 512;

/// Why bytes are not what they should be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bad(pub String);

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn bad<T>(what: impl Into<String>) -> Result<T, Bad> {
    Err(Bad(what.into()))
}

fn need(holds: bool, what: &str) -> Result<(), Bad> {
    if holds { Ok(()) } else { bad(what) }
}

/// Section 1: CRC32C over several byte strings, bit by bit.
pub fn crc(strings: &[&[u8]]) -> u32 {
    let mut crc = u32::MAX;
    for byte in strings.iter().copied().flatten() {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 {
                (crc >> 1) ^ 0x82f6_3b78
            } else {
                crc >> 1
            };
        }
    }
    !crc
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn size(n: u64) -> usize {
    usize::try_from(n).expect("an image fits in memory")
}

fn down(x: u64, y: u64) -> u64 {
    x / y * y
}

fn up(x: u64, y: u64) -> u64 {
    down(x + y - 1, y)
}

fn ceil(x: u64, y: u64) -> u64 {
    x.div_ceil(y)
}

/// The checksum of a structure whose own field, four bytes at `at`, counts as zero.
fn crc_without(seed: &[&[u8]], bytes: &[u8], at: usize) -> u32 {
    let mut strings = seed.to_vec();
    strings.extend([&bytes[..at], &[0; 4], &bytes[at + 4..]]);
    crc(&strings)
}

/// Section 4.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    pub uuid: [u8; 16],
    pub name: String,
    pub compat: u64,
    pub ro_compat: u64,
    pub generation: u64,
    pub part_size: u64,
    pub member_size: u64,
    pub journal_size: u64,
    pub state_seq: u64,
    pub bitmap: (u64, u64),
    pub chunk: u64,
    pub block_size: u32,
    pub epoch: u32,
    pub members_at: u32,
    pub members: u64,
    pub role_index: u16,
    pub role: u8,
    pub placement: u8,
    pub phase: u8,
    pub state: u8,
    pub marks: u8,
    pub clean: u8,
}

/// Where the checksum of a superblock or an anchor stands.
pub const CRC_AT: usize = 12;

impl Superblock {
    pub fn parse(bytes: &[u8]) -> Result<Superblock, Bad> {
        need(
            bytes.len() == 4096 && &bytes[..8] == b"ujournal",
            "no superblock",
        )?;
        need(
            u32_at(bytes, CRC_AT) == crc_without(&[], bytes, CRC_AT),
            "superblock checksum",
        )?;
        need(u32_at(bytes, 8) == 1, "superblock version")?;
        need(u64_at(bytes, 80) == 0, "incompat")?;
        let name = &bytes[32..64];
        let name = &name[..name.iter().position(|byte| *byte == 0).unwrap_or(32)];
        let superblock = Superblock {
            uuid: bytes[16..32].try_into().expect("16 bytes"),
            name: String::from_utf8(name.to_vec()).map_err(|_| Bad("name".into()))?,
            compat: u64_at(bytes, 64),
            ro_compat: u64_at(bytes, 72),
            generation: u64_at(bytes, 88),
            part_size: u64_at(bytes, 96),
            member_size: u64_at(bytes, 104),
            journal_size: u64_at(bytes, 112),
            state_seq: u64_at(bytes, 120),
            bitmap: (u64_at(bytes, 128), u64_at(bytes, 136)),
            chunk: u64::from(u32_at(bytes, 148)),
            block_size: u32_at(bytes, 152),
            epoch: u32_at(bytes, 156),
            members_at: u32_at(bytes, 160),
            members: u64::from(u16_at(bytes, 164)),
            role_index: u16_at(bytes, 168),
            role: bytes[170],
            placement: bytes[171],
            phase: bytes[172],
            state: bytes[173],
            marks: bytes[174],
            clean: bytes[175],
        };
        need(u32_at(bytes, 144) == 1, "layout_version")?;
        let s = &superblock;
        let power = s.chunk.is_power_of_two() && (4096..=1 << 20).contains(&s.chunk);
        need(power, "chunk")?;
        need([512, 4096].contains(&s.block_size), "block_size")?;
        need(s.epoch < 1 << 20 && s.members_at < 1 << 20, "epoch")?;
        need((1..=32).contains(&s.members), "members")?;
        need(s.placement <= 3, "placement")?;
        let journals = u16_at(bytes, 166);
        need(journals == u16::from(s.placement == 0), "journals")?;
        match s.role {
            0 => need(u64::from(s.role_index) < s.members, "role_index")?,
            1 => need(s.role_index == 0 && journals == 1, "role")?,
            _ => return bad("role"),
        }
        need(
            s.phase <= 1 && s.state <= 2 && s.marks <= 3 && s.clean <= 1,
            "a small field",
        )?;
        need(
            [s.part_size, s.member_size, s.journal_size]
                .iter()
                .all(|n| *n <= 1 << 56),
            "size",
        )?;
        let geometry = Geometry::new(s)?;
        need(
            (u64_at(bytes, 128), u64_at(bytes, 136)) == geometry.bitmap,
            "bitmap",
        )?;
        need(s.generation <= 1 << 62, "generation")?;
        let least = if s.role == 0 {
            s.member_size
        } else {
            s.journal_size
        };
        need(s.part_size >= least, "part_size")?;
        need(bytes[176..].iter().all(|byte| *byte == 0), "reserved")?;
        Ok(superblock)
    }
}

/// A run of bytes on a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    pub part: usize,
    pub offset: u64,
}

/// Section 3.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Geometry {
    pub members: u64,
    pub chunk: u64,
    pub placement: u8,
    pub region_len: u64,
    pub data_len: u64,
    pub half: u64,
    pub data_at: u64,
    pub region_at: u64,
    pub bitmap: (u64, u64),
    /// `W`.
    pub ring: u64,
}

impl Geometry {
    pub fn new(s: &Superblock) -> Result<Geometry, Bad> {
        let (n, c) = (s.members, s.chunk);
        let r = if s.placement == 0 {
            0
        } else {
            up(s.journal_size, c * n) / n
        };
        let u = s.member_size.saturating_sub(2 * MARGIN + r);
        let b = up(ceil(ceil(u, 65536), 8), FRAME);
        let l = down(u.saturating_sub(b), c);
        need(l > 0, "no room for data")?;
        let h = down(l / 2, c);
        let (data_at, region_at) = match s.placement {
            0 => (MARGIN, MARGIN),
            1 => (MARGIN + r, MARGIN),
            2 => (MARGIN, MARGIN + h),
            _ => (MARGIN, MARGIN + l),
        };
        let region_len = if s.placement == 0 {
            down(s.journal_size.saturating_sub(2 * MARGIN), FRAME)
        } else {
            r
        };
        let ring = if s.placement == 0 {
            region_len.saturating_sub(2 * FRAME)
        } else {
            n * region_len.saturating_sub(2 * c)
        };
        need(ring >= 425_984, "the ring is too small")?;
        let bitmap = (MARGIN + r + l, b);
        Ok(Geometry {
            members: n,
            chunk: c,
            placement: s.placement,
            region_len,
            data_len: l,
            half: h,
            data_at,
            region_at,
            bitmap,
            ring,
        })
    }

    /// Bytes of the device.
    pub fn device(&self) -> u64 {
        self.members * self.data_len
    }

    /// Where byte `b` of the device lies.
    pub fn data(&self, b: u64) -> Place {
        let k = b / self.chunk;
        let within = k / self.members * self.chunk + b % self.chunk;
        let skip = if self.placement == 2 && within >= self.half {
            self.region_len
        } else {
            0
        };
        Place {
            part: size(k % self.members),
            offset: self.data_at + within + skip,
        }
    }

    /// Where byte `x` of the ring lies.
    pub fn ring(&self, x: u64) -> Place {
        if self.placement == 0 {
            return Place {
                part: size(self.members),
                offset: self.region_at + FRAME + x,
            };
        }
        let k = x / self.chunk;
        let within = k / self.members * self.chunk + x % self.chunk;
        Place {
            part: size(k % self.members),
            offset: self.region_at + self.chunk + within,
        }
    }

    /// The part with the anchors, which speaks for the journal.
    pub fn journal_part(&self) -> usize {
        if self.placement == 0 {
            size(self.members)
        } else {
            0
        }
    }

    pub fn anchors(&self) -> [u64; 2] {
        [self.region_at, self.region_at + self.region_len - FRAME]
    }

    pub fn payload_max(&self) -> u64 {
        (1 << 20).min(down(
            ((self.ring - 262_144) / 8).saturating_sub(12_288),
            FRAME,
        ))
    }

    pub fn span(&self) -> u64 {
        down((self.ring / 8).min(256 << 20), FRAME).max(self.payload_max() + 12_288)
    }
}

/// Section 5.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Anchor {
    pub generation: u64,
    pub tail: (u64, u64),
    pub head_offset: u64,
    pub head_number: u64,
    pub head_seq: u64,
    pub durable_seq: u64,
    pub replayed_through: u64,
    pub epoch: u32,
    pub closed: bool,
}

impl Anchor {
    pub fn parse(bytes: &[u8], uuid: [u8; 16], ring: u64) -> Result<Anchor, Bad> {
        need(
            bytes.len() == 4096 && &bytes[..8] == b"ujanchor",
            "no anchor",
        )?;
        need(
            u32_at(bytes, CRC_AT) == crc_without(&[], bytes, CRC_AT),
            "anchor checksum",
        )?;
        need(u32_at(bytes, 8) == 1, "anchor version")?;
        need(bytes[16..32] == uuid, "anchor of another array")?;
        let closed = u32_at(bytes, 100);
        let anchor = Anchor {
            generation: u64_at(bytes, 32),
            tail: (u64_at(bytes, 40), u64_at(bytes, 48)),
            head_offset: u64_at(bytes, 56),
            head_number: u64_at(bytes, 64),
            head_seq: u64_at(bytes, 72),
            durable_seq: u64_at(bytes, 80),
            replayed_through: u64_at(bytes, 88),
            epoch: u32_at(bytes, 96),
            closed: closed == 1,
        };
        for offset in [anchor.tail.1, anchor.head_offset] {
            need(
                offset < ring && offset.is_multiple_of(FRAME),
                "anchor offset",
            )?;
        }
        need(anchor.epoch < 1 << 20, "anchor epoch")?;
        need(closed <= 1, "closed")?;
        need(anchor.tail.0 <= anchor.head_seq, "tail behind head")?;
        need(anchor.generation <= 1 << 62, "generation")?;
        need(anchor.head_number <= 1 << 62, "head_number")?;
        need(bytes[104..].iter().all(|byte| *byte == 0), "reserved")?;
        Ok(anchor)
    }
}

/// Section 6: one entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    pub op: u8,
    pub keep: bool,
    pub lba: u64,
    pub sectors: u32,
    pub payload_at: u32,
    pub stored_len: u32,
}

/// Section 6: a header with its entries and frame checksums.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    pub kind: u8,
    pub epoch: u32,
    pub count: u32,
    pub number: u64,
    pub offset: u64,
    pub prev_seq: u64,
    pub first_seq: u64,
    pub tail: (u64, u64),
    pub durable_seq: u64,
    pub header_len: u64,
    pub payload_len: u64,
    pub entries: Vec<Entry>,
    pub frames: Vec<u32>,
}

/// What a record is checked against.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    pub uuid: [u8; 16],
    pub ring: u64,
    pub payload_max: u64,
    pub device_sectors: u64,
}

impl Header {
    /// The valid header at ring offset `x`. `bytes` has at least 12 KiB, or goes on to the ring's end twice.
    pub fn parse(bytes: &[u8], x: u64, scope: &Scope) -> Result<Header, Bad> {
        need(
            &bytes[..8] == b"ujrecord" && u16_at(bytes, 8) == 1,
            "no record",
        )?;
        let header_len = u64::from(u32_at(bytes, 96));
        need([4096, 8192, 12_288].contains(&header_len), "header_len")?;
        let Some(bytes) = bytes.get(..size(header_len)) else {
            return bad("header_len");
        };
        need(bytes[16..32] == scope.uuid, "record of another array")?;
        need(u64_at(bytes, 48) == x, "record of another place")?;
        let epoch = u32_at(bytes, 32);
        let seed: [&[u8]; 3] = [&scope.uuid, &epoch.to_le_bytes(), &x.to_le_bytes()];
        need(
            u32_at(bytes, CRC_AT) == crc_without(&seed, bytes, CRC_AT),
            "header checksum",
        )?;

        let (count, payload_len) = (u32_at(bytes, 36), u64::from(u32_at(bytes, 100)));
        let (kind, number) = (bytes[10], u64_at(bytes, 40));
        need(
            epoch < 1 << 20 && kind <= 4 && count <= 256,
            "epoch, kind or count",
        )?;
        need((kind == 0) == (count > 0), "count of this kind")?;
        need(payload_len <= scope.payload_max, "payload_len")?;
        let frames = ceil(payload_len, FRAME);
        need(
            header_len == up(128 + 32 * u64::from(count) + 4 * frames, FRAME),
            "header_len",
        )?;

        let (prev_seq, durable_seq) = (u64_at(bytes, 56), u64_at(bytes, 88));
        let tail = (u64_at(bytes, 72), u64_at(bytes, 80));
        need(
            tail.1 < scope.ring && tail.1.is_multiple_of(FRAME),
            "tail_offset",
        )?;
        need(
            tail.0 <= durable_seq && durable_seq <= prev_seq,
            "tail_seq or durable_seq",
        )?;
        need(number <= 1 << 62, "number")?;
        let reserved = bytes[104..128].iter().all(|byte| *byte == 0);
        need(bytes[11] == 0 && reserved, "reserved")?;
        need(
            prev_seq >> 44 <= u64::from(epoch),
            "prev_seq of a later life",
        )?;
        need(
            prev_seq % (1 << 44) <= (1 << 44) - 257,
            "prev_seq at its end",
        )?;
        let first_seq = prev_seq.max(u64::from(epoch) << 44) + 1;
        need(u64_at(bytes, 64) == first_seq, "first_seq")?;

        let entry = |i: usize| parse_entry(&bytes[128 + 32 * i..160 + 32 * i], payload_len, scope);
        let checksums = 128 + 32 * size(u64::from(count));
        Ok(Header {
            kind,
            epoch,
            count,
            number,
            offset: x,
            prev_seq,
            first_seq,
            tail,
            durable_seq,
            header_len,
            payload_len,
            entries: (0..size(u64::from(count)))
                .map(entry)
                .collect::<Result<_, Bad>>()?,
            frames: (0..size(frames))
                .map(|i| u32_at(bytes, checksums + 4 * i))
                .collect(),
        })
    }

    pub fn last_seq(&self) -> u64 {
        if self.count == 0 {
            self.prev_seq
        } else {
            self.first_seq + u64::from(self.count) - 1
        }
    }

    pub fn len(&self) -> u64 {
        self.header_len + up(self.payload_len, FRAME)
    }
}

fn parse_entry(bytes: &[u8], payload_len: u64, scope: &Scope) -> Result<Entry, Bad> {
    let (op, flags) = (bytes[0], u16_at(bytes, 2));
    let entry = Entry {
        op,
        keep: flags == 1,
        lba: u64_at(bytes, 8),
        sectors: u32_at(bytes, 4),
        payload_at: u32_at(bytes, 16),
        stored_len: u32_at(bytes, 20),
    };
    need(
        (1..=3).contains(&op) && (flags == 0 || (op == 2 && flags == 1)),
        "op or flags",
    )?;
    need(bytes[1] == 0, "codec")?;
    need(bytes[24..32].iter().all(|byte| *byte == 0), "reserved")?;
    let end = entry.lba.checked_add(u64::from(entry.sectors));
    need(
        entry.sectors > 0 && end.is_some_and(|end| end <= scope.device_sectors),
        "lba",
    )?;
    let stored = if op == 1 {
        u64::from(entry.sectors) * SECTOR
    } else {
        0
    };
    need(u64::from(entry.stored_len) == stored, "stored_len")?;
    let inside = u64::from(entry.payload_at) + stored <= payload_len;
    need(entry.payload_at.is_multiple_of(512) && inside, "payload_at")?;
    Ok(entry)
}

/// What the reader made of an array.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    pub geometry: Geometry,
    pub anchor: Anchor,
    /// The records from the tail to the head.
    pub records: Vec<Header>,
    pub head_offset: u64,
    pub last_seq: u64,
    pub tail: (u64, u64),
    /// The device, byte by byte.
    pub device: Vec<u8>,
}

/// Reads an array from the images of its parts: the members in order, then a detached journal.
pub fn read(parts: &[Vec<u8>]) -> Result<Found, Bad> {
    let superblocks = parts
        .iter()
        .map(|part| newest_superblock(part))
        .collect::<Result<Vec<_>, Bad>>()?;
    let geometry = Geometry::new(&superblocks[0])?;
    belong_together(&superblocks, parts, &geometry)?;
    let journal = &superblocks[geometry.journal_part()];
    let scope = Scope {
        uuid: journal.uuid,
        ring: geometry.ring,
        payload_max: geometry.payload_max(),
        device_sectors: geometry.device() / SECTOR,
    };
    let ring = Ring {
        parts,
        geometry: &geometry,
        scope,
        newest: journal.epoch,
    };
    let (anchor, both) = ring.anchors()?;
    let knows_of_a_stop = anchor.closed && anchor.epoch == journal.epoch;
    let mut others = (0..)
        .zip(&superblocks)
        .filter(|(i, _)| *i != geometry.journal_part())
        .peekable();
    let only_the_journal_is_dirty = journal.clean == 0
        && others.peek().is_some()
        && others.all(|(_, sb)| sb.clean == 1 && sb.epoch == journal.epoch);
    need(
        !only_the_journal_is_dirty || !both || knows_of_a_stop,
        "the journal is stale: it knows of no stop",
    )?;
    ring.scan()
}

fn newest_superblock(part: &[u8]) -> Result<Superblock, Bad> {
    let len = u64::try_from(part.len()).expect("64 bits");
    let at = |offset: u64| Superblock::parse(&part[size(offset)..size(offset + FRAME)]);
    let first = at(FRAME);
    let end = first.as_ref().map_or(len, |sb| sb.part_size.min(len));
    match (first, at(down(end, FRAME) - FRAME)) {
        (Ok(a), Ok(b)) if a.generation == b.generation && a != b => bad("the copies differ"),
        (Ok(a), Ok(b)) => Ok(if b.generation > a.generation { b } else { a }),
        (Ok(a), Err(_)) => Ok(a),
        (Err(_), Ok(b)) => Ok(b),
        (Err(a), Err(_)) => Err(a),
    }
}

fn belong_together(
    superblocks: &[Superblock],
    parts: &[Vec<u8>],
    geometry: &Geometry,
) -> Result<(), Bad> {
    let first = &superblocks[0];
    let expected = size(geometry.members) + usize::from(first.placement == 0);
    need(superblocks.len() == expected, "the number of parts")?;
    let journal = &superblocks[geometry.journal_part()];
    for (i, sb) in superblocks.iter().enumerate() {
        let what = |sb: &Superblock| {
            (
                sb.uuid,
                sb.name.clone(),
                (sb.members, sb.chunk, sb.member_size),
                (sb.placement, sb.journal_size, sb.block_size),
            )
        };
        need(what(sb) == what(first), "parts disagree")?;
        let role = if i < size(geometry.members) {
            (0, i)
        } else {
            (1, 0)
        };
        need((sb.role, usize::from(sb.role_index)) == role, "role")?;
        need(sb.phase == 1, "forming")?;
        need(
            sb.part_size <= u64::try_from(parts[i].len()).expect("64 bits"),
            "shrunk",
        )?;
        need(sb.epoch <= journal.epoch, "the journal is stale")?;
        need(
            i == geometry.journal_part() || sb.epoch >= journal.members_at,
            "a member is stale",
        )?;
        need(
            sb.clean == 1 || journal.clean == 0 || sb.epoch != journal.epoch,
            "a member is stale: it knows of no stop",
        )?;
    }
    Ok(())
}

/// How a run of records ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct End {
    epoch: u32,
    number: u64,
    seq: u64,
}

struct Ring<'a> {
    parts: &'a [Vec<u8>],
    geometry: &'a Geometry,
    scope: Scope,
    /// `N`.
    newest: u32,
}

impl Ring<'_> {
    /// `len` bytes from place `x` on; places go on beyond the ring's end.
    fn bytes(&self, x: u64, len: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(size(len));
        for sector in (x..x + len).step_by(512) {
            let place = self.geometry.ring(sector % self.geometry.ring);
            let at = size(place.offset);
            bytes.extend_from_slice(&self.parts[place.part][at..at + 512]);
        }
        bytes
    }

    fn header(&self, x: u64) -> Result<Header, Bad> {
        Header::parse(&self.bytes(x, 12_288), x % self.geometry.ring, &self.scope)
    }

    /// The valid record at place `x`.
    fn record(&self, x: u64) -> Result<Header, Bad> {
        let header = self.header(x)?;
        let payload = x + header.header_len;
        for (i, expected) in (0..).zip(&header.frames) {
            let at = payload + FRAME * i;
            let offset = at % self.geometry.ring;
            let bytes = self.bytes(at, FRAME);
            let seed: [&[u8]; 4] = [
                &self.scope.uuid,
                &header.epoch.to_le_bytes(),
                &offset.to_le_bytes(),
                &bytes,
            ];
            need(crc(&seed) == *expected, "frame checksum")?;
        }
        Ok(header)
    }

    /// Section 7.
    fn follows(&self, header: &Header, end: End) -> bool {
        let next = header.epoch == end.epoch && header.number == end.number + 1 && header.kind != 1;
        let start = header.kind == 1
            && header.number == 0
            && (end.epoch + 1..=self.newest).contains(&header.epoch);
        header.prev_seq == end.seq && (next || start)
    }

    fn anchors(&self) -> Result<(Anchor, bool), Bad> {
        let part = &self.parts[self.geometry.journal_part()];
        let [a, b] = self.geometry.anchors().map(|at| {
            let bytes = &part[size(at)..size(at + FRAME)];
            Anchor::parse(bytes, self.scope.uuid, self.geometry.ring)
        });
        match (a, b) {
            (Ok(a), Ok(b)) if a.generation == b.generation && a != b => bad("the anchors differ"),
            (Ok(a), Ok(b)) => Ok((if b.generation > a.generation { b } else { a }, true)),
            (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok((one, false)),
            (Err(a), Err(_)) => Err(a),
        }
    }

    /// Section 9.
    fn scan(&self) -> Result<Found, Bad> {
        let w = self.geometry.ring;
        let (anchor, both) = self.anchors()?; // 1.
        need(anchor.epoch <= self.newest, "the anchor's epoch")?;

        let begin = anchor.head_offset + w; // 2. One lap on, so that the tail has a place before it.
        let reach = match (anchor.closed, both) {
            (true, true) => 0,
            (false, true) => self.geometry.span(),
            (_, false) => 2 * self.geometry.span() + 4096,
        };
        let limit = begin + reach.min(w - FRAME);
        let at_anchor = End {
            epoch: anchor.epoch,
            number: anchor.head_number,
            seq: anchor.head_seq,
        };
        let (mut head, mut end) = (begin, at_anchor);
        let mut walked = Vec::new();
        while head < limit {
            let Ok(header) = self.record(head) else { break };
            if !self.follows(&header, end) {
                break;
            }
            end = End {
                epoch: header.epoch,
                number: header.number,
                seq: header.last_seq(),
            };
            let len = header.len();
            walked.push((head, header));
            head += len;
        }

        for x in (head..limit).step_by(4096) {
            // 3.
            if let Ok(header) = self.header(x) {
                let known = (end.epoch..=self.newest).contains(&header.epoch);
                need(
                    !(known && header.durable_seq > end.seq),
                    "acknowledged data is damaged",
                )?;
            }
        }

        let mut tail = anchor.tail; // 4.
        for (_, header) in &walked {
            if header.tail.0 >= tail.0 {
                tail = header.tail;
            }
        }
        let back = (head % w + w - tail.1) % w;
        let tail_at = head - back;

        let mut records = Vec::new(); // 5.
        let mut at = tail_at;
        let mut before: Option<End> = None;
        while at < begin {
            let header = self.record(at)?;
            let fits = match before {
                None => header.prev_seq == tail.0 && header.epoch <= self.newest,
                Some(before) => self.follows(&header, before),
            };
            need(fits, "a record before the anchor is not the next one")?;
            before = Some(End {
                epoch: header.epoch,
                number: header.number,
                seq: header.last_seq(),
            });
            let len = header.len();
            records.push((at, header));
            at += len;
        }
        if tail_at < begin {
            need(
                at == begin && before == Some(at_anchor),
                "the records do not end at the anchor",
            )?;
        }
        records.extend(walked.into_iter().filter(|(at, _)| *at >= tail_at)); // 6.

        Ok(Found {
            device: self.device(&records),
            geometry: self.geometry.clone(),
            anchor,
            records: records.into_iter().map(|(_, header)| header).collect(),
            head_offset: head % w,
            last_seq: end.seq,
            tail,
        })
    }

    /// Section 10.
    fn device(&self, records: &[(u64, Header)]) -> Vec<u8> {
        let mut device = Vec::with_capacity(size(self.geometry.device()));
        for b in (0..self.geometry.device()).step_by(512) {
            let place = self.geometry.data(b);
            let at = size(place.offset);
            device.extend_from_slice(&self.parts[place.part][at..at + 512]);
        }
        for (at, header) in records {
            for entry in &header.entries {
                let from = size(entry.lba * SECTOR);
                let to = from + size(u64::from(entry.sectors) * SECTOR);
                if entry.op == 1 {
                    let payload = at + header.header_len + u64::from(entry.payload_at);
                    device[from..to]
                        .copy_from_slice(&self.bytes(payload, u64::from(entry.stored_len)));
                } else {
                    device[from..to].fill(0);
                }
            }
        }
        device
    }
}
