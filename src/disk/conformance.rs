//! What every [`Disk`] must do, as tests that any of them can be put through.
//!
//! Goal: callers may rely on the contract in `disk/mod.rs` whatever disk they got. Method: the edges by
//! hand, and random operations compared with a plain list of bytes. A disk joins by
//!
//! ```text
//! mod on_something { crate::disk::conformance::suite!((make_the_disk(), what_must_outlive_it)); }
//! ```
//!
//! in a test module; it has at least 64 KiB, any contents, and blocks of at most 4096 bytes.

use super::buffer::AlignedBuffer;
use super::{Disk, DiskError, DiskOp};
use crate::units::{FRAME, Offset, to_usize};

/// Expands to one test for each promise. The disk is made anew for each.
macro_rules! suite {
    ($make:expr) => {
        crate::disk::conformance::suite!(
            @tests $make,
            the_first_and_the_last_frame_keep_what_is_written,
            a_range_beyond_the_end_is_refused_and_changes_nothing,
            an_empty_range_is_accepted_up_to_the_end_and_not_beyond,
            zeroing_zeroes_exactly_its_range,
            a_flush_keeps_everything_and_can_be_repeated,
            random_operations_do_what_they_do_to_plain_bytes,
            an_error_names_the_part_the_operation_and_the_range
        );
    };
    (@tests $make:expr, $($name:ident),+) => {
        $(
            #[test]
            fn $name() {
                let (mut disk, _outlives_it) = $make;
                crate::disk::conformance::$name(&mut disk);
            }
        )+
    };
}
pub(crate) use suite;

fn filled(len: u64, byte: u8) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::zeroed(to_usize(len));
    buffer.fill(byte);
    buffer
}

fn read(disk: &mut dyn Disk, offset: u64, len: u64) -> AlignedBuffer {
    // Not zeroes: a disk that leaves the buffer alone must not pass for one that read zeroes.
    let mut buffer = filled(len, 0xee);
    disk.read(Offset(offset), &mut buffer).unwrap();
    buffer
}

fn read_all(disk: &mut dyn Disk) -> AlignedBuffer {
    let size = disk.size();
    read(disk, 0, size)
}

fn assert_all(bytes: &[u8], expected: u8, what: &str) {
    if let Some(place) = bytes.iter().position(|byte| *byte != expected) {
        panic!(
            "{what}: byte {place} is {:#04x}, expected {expected:#04x}",
            bytes[place]
        );
    }
}

pub(crate) fn the_first_and_the_last_frame_keep_what_is_written(disk: &mut dyn Disk) {
    let last = disk.size() - FRAME;
    disk.write(Offset(0), &filled(FRAME, 1)).unwrap();
    disk.write(Offset(FRAME), &filled(FRAME, 2)).unwrap();
    disk.write(Offset(last - FRAME), &filled(FRAME, 3)).unwrap();
    disk.write(Offset(last), &filled(FRAME, 4)).unwrap();
    for (offset, expected) in [(0, 1), (FRAME, 2), (last - FRAME, 3), (last, 4)] {
        assert_all(
            &read(disk, offset, FRAME),
            expected,
            &format!("frame at {offset}"),
        );
    }
    let size = disk.size();
    disk.write(Offset(0), &filled(size, 5)).unwrap();
    assert_all(&read(disk, 0, size), 5, "the whole disk in one transfer");
}

pub(crate) fn a_range_beyond_the_end_is_refused_and_changes_nothing(disk: &mut dyn Disk) {
    let size = disk.size();
    disk.write(Offset(0), &filled(size, 7)).unwrap();
    let beyond = [
        (size, FRAME),
        (size - FRAME, 2 * FRAME),
        (0, size + FRAME),
        (u64::MAX, FRAME),
        (u64::MAX - FRAME + 1, FRAME),
        (1 << 63, FRAME),
    ];
    for (offset, len) in beyond {
        let offset = Offset(offset);
        disk.write(offset, &filled(len, 9))
            .expect_err(&format!("write {len} at {offset}"));
        disk.zero(offset, len)
            .expect_err(&format!("zero {len} at {offset}"));
        let mut buffer = filled(len, 0xee);
        disk.read(offset, &mut buffer)
            .expect_err(&format!("read {len} at {offset}"));
    }
    disk.zero(Offset(0), u64::MAX - FRAME + 1)
        .expect_err("zero almost all that 64 bits can count");
    disk.zero(Offset(FRAME), u64::MAX - FRAME + 1)
        .expect_err("zero a range whose end overflows");
    assert_eq!(disk.size(), size);
    assert_all(&read_all(disk), 7, "after refused operations");
}

pub(crate) fn an_empty_range_is_accepted_up_to_the_end_and_not_beyond(disk: &mut dyn Disk) {
    let size = disk.size();
    disk.write(Offset(0), &filled(size, 7)).unwrap();
    for offset in [0, FRAME, size - FRAME, size] {
        disk.read(Offset(offset), &mut []).unwrap();
        disk.write(Offset(offset), &[]).unwrap();
        disk.zero(Offset(offset), 0).unwrap();
    }
    for offset in [size + FRAME, u64::MAX - FRAME + 1, u64::MAX] {
        disk.read(Offset(offset), &mut []).unwrap_err();
        disk.write(Offset(offset), &[]).unwrap_err();
        disk.zero(Offset(offset), 0).unwrap_err();
    }
    assert_all(&read_all(disk), 7, "after empty operations");
}

pub(crate) fn zeroing_zeroes_exactly_its_range(disk: &mut dyn Disk) {
    let size = disk.size();
    let ranges = [
        (0, FRAME),
        (FRAME, 3 * FRAME),
        (size - FRAME, FRAME),
        (size - 9 * FRAME, 8 * FRAME),
        (0, size),
    ];
    for (offset, len) in ranges {
        disk.write(Offset(0), &filled(size, 0xa5)).unwrap();
        disk.zero(Offset(offset), len).unwrap();
        let bytes = read_all(disk);
        let (start, end) = (to_usize(offset), to_usize(offset + len));
        let what = format!("{len} zeroed at {offset}");
        assert_all(&bytes[..start], 0xa5, &format!("before {what}"));
        assert_all(&bytes[start..end], 0, &what);
        assert_all(&bytes[end..], 0xa5, &format!("after {what}"));
    }
}

pub(crate) fn a_flush_keeps_everything_and_can_be_repeated(disk: &mut dyn Disk) {
    let size = disk.size();
    disk.flush().unwrap();
    disk.write(Offset(0), &filled(size, 0x3c)).unwrap();
    disk.flush().unwrap();
    disk.flush().unwrap();
    assert_all(&read_all(disk), 0x3c, "after flushes");
}

pub(crate) fn random_operations_do_what_they_do_to_plain_bytes(disk: &mut dyn Disk) {
    let seed = seed();
    // Shown if the test fails.
    println!("repeat with UJOURNAL_SEED={seed}");
    let mut random = Random(seed);
    let size = disk.size();
    let frames = size / FRAME;
    let mut model = vec![0_u8; to_usize(size)];
    disk.zero(Offset(0), size).unwrap();
    for step in 0..500 {
        let offset = random.below(frames) * FRAME;
        let len = random.below((size - offset).min(32 * FRAME) / FRAME + 1) * FRAME;
        let range = to_usize(offset)..to_usize(offset + len);
        match random.below(8) {
            0..=2 => {
                let byte = u8::try_from(random.below(256)).unwrap();
                disk.write(Offset(offset), &filled(len, byte)).unwrap();
                model[range].fill(byte);
            }
            3 => {
                disk.zero(Offset(offset), len).unwrap();
                model[range].fill(0);
            }
            4 => disk.flush().unwrap(),
            _ => assert!(
                *read(disk, offset, len) == model[range],
                "step {step}: {len} bytes at {offset} differ"
            ),
        }
    }
    assert!(
        *read_all(disk) == model,
        "the whole disk differs after the last step"
    );
}

pub(crate) fn an_error_names_the_part_the_operation_and_the_range(disk: &mut dyn Disk) {
    let (name, size) = (disk.name(), disk.size());
    let check = |error: DiskError, op: DiskOp| {
        assert_eq!(
            (error.op, error.offset, error.len),
            (op, Offset(size), FRAME)
        );
        let expected = format!("{name}: cannot {op} {FRAME} bytes at offset {size}");
        assert_eq!(error.to_string(), expected);
        assert!(
            error.source.to_string().contains(&size.to_string()),
            "{}",
            error.source
        );
    };
    check(
        disk.read(Offset(size), &mut filled(FRAME, 0)).unwrap_err(),
        DiskOp::Read,
    );
    check(
        disk.write(Offset(size), &filled(FRAME, 0)).unwrap_err(),
        DiskOp::Write,
    );
    check(disk.zero(Offset(size), FRAME).unwrap_err(), DiskOp::Zero);
}

/// From the environment, to repeat a failure; else a new one.
fn seed() -> u64 {
    let new = || {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_nanos()
            .to_string()
    };
    let digits = std::env::var("UJOURNAL_SEED").unwrap_or_else(|_| new());
    digits
        .parse::<u128>()
        .map(|n| u64::try_from(n % u128::from(u64::MAX)).unwrap())
        .expect("UJOURNAL_SEED is a number")
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}
