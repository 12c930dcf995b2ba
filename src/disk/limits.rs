//! What a part can do: the numbers that the engine plans its I/O by.
//!
//! They are read once, when the part is opened, from `/sys` for block devices and from the filesystem
//! for files. Whatever is missing or makes no sense takes its careful value: the one with which nothing
//! goes wrong and some things go slower.

use super::buffer::AlignedBuffer;
use super::error::PartError;
use super::identity::{DeviceNumber, Identity, Located};
use super::part::Access;
use crate::kernel::Kernel;
use crate::units::{FRAME, KIB, MIB, SECTOR, round_down, to_u64, to_usize};
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, StatxFlags};
use std::fs::File;
use std::io;
use std::path::Path;

/// No request is larger, whatever the disk allows: 256 pages are what the kernel takes without
/// splitting.
pub const MAX_IO: u64 = MIB;

/// What one request may be where the disk does not say: the kernel's own careful limit, 255 sectors,
/// in whole frames.
const MAX_IO_UNKNOWN: u64 = 124 * KIB;

/// Pieces of memory in one request where the disk does not say.
const MAX_SEGMENTS_UNKNOWN: u64 = 31;

/// Whether a completed write survives a power cut without a flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteCache {
    /// No: there is a volatile cache.
    WriteBack,
    /// Yes.
    WriteThrough,
}

/// What a part can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartLimits {
    /// Offsets, lengths and addresses are multiples of it: 512, 1024, 2048 or 4096.
    pub block_size: u64,
    /// The largest request that goes down in one piece; a multiple of 4096, from 4096 to [`MAX_IO`].
    pub max_io_bytes: u64,
    /// Separate pieces of memory in one request.
    pub max_segments: u64,
    /// Moving between two places takes milliseconds.
    pub rotational: bool,
    /// It can write through its cache, on every disk that it is made of.
    pub fua: bool,
    /// What completion means.
    pub write_cache: WriteCache,
    /// A DSYNC write is a flush of all that completed before it: true only where the block layer itself
    /// makes a flush of it, for a disk that has a volatile cache and cannot write through it. A stack of
    /// disks (device mapper, md) hands it to the one disk that it lands on, and flushes none of the others.
    /// Unlike `fua`, which is false where nothing is known, this is false there because durability rests
    /// on it.
    pub dsync_flushes_earlier_writes: bool,
    /// A range becomes zeroes without being written.
    pub zeroes_without_writing: bool,
    /// The unit in which space can be given back, in bytes; 0 if it cannot.
    pub discard_granularity: u64,
}

/// The files of a disk's `queue` folder, as they read; `None` where there is none.
#[derive(Clone, Default, Debug)]
pub struct QueueTexts {
    /// The smallest unit of I/O, in bytes.
    pub logical_block_size: Option<String>,
    /// The largest request, in KiB.
    pub max_sectors_kb: Option<String>,
    /// Pieces of memory in one request.
    pub max_segments: Option<String>,
    /// `1` or `0`.
    pub rotational: Option<String>,
    /// `1` or `0`.
    pub fua: Option<String>,
    /// `write back` or `write through`.
    pub write_cache: Option<String>,
    /// [`Kernel::is_request_based`].
    pub request_based: bool,
    /// 0 if a range cannot be zeroed without writing it.
    pub write_zeroes_max_bytes: Option<String>,
    /// In bytes; 0 if space cannot be given back.
    pub discard_granularity: Option<String>,
}

impl QueueTexts {
    /// Of a disk, or of the disk that a partition is on.
    pub fn read(kernel: &Kernel, number: DeviceNumber) -> QueueTexts {
        let read = |file| kernel.queue_text(number, file);
        QueueTexts {
            logical_block_size: read("logical_block_size"),
            max_sectors_kb: read("max_sectors_kb"),
            max_segments: read("max_segments"),
            rotational: read("rotational"),
            fua: read("fua"),
            write_cache: read("write_cache"),
            request_based: kernel.is_request_based(number),
            write_zeroes_max_bytes: read("write_zeroes_max_bytes"),
            discard_granularity: read("discard_granularity"),
        }
    }
}

impl PartLimits {
    /// Of a block device whose queue reads so.
    ///
    /// The block size is as found, or 4096, which fits every disk; whether it is one that we can use is
    /// for the caller to check.
    pub fn of_block_device(texts: &QueueTexts) -> PartLimits {
        let max_segments = number(&texts.max_segments)
            .filter(|n| *n > 0)
            .unwrap_or(MAX_SEGMENTS_UNKNOWN);
        let max_sectors = number(&texts.max_sectors_kb)
            .and_then(|kib| kib.checked_mul(KIB))
            .unwrap_or(MAX_IO_UNKNOWN);
        let in_segments = max_segments.saturating_mul(FRAME);
        // What a stack of disks says of itself need not hold for each of them.
        let fua = flag(&texts.fua).filter(|_| texts.request_based);
        let write_cache = match texts.write_cache.as_deref().map(str::trim) {
            Some("write through" | "none") => Some(WriteCache::WriteThrough),
            Some("write back") => Some(WriteCache::WriteBack),
            Some(_) | None => None,
        };
        PartLimits {
            block_size: number(&texts.logical_block_size).unwrap_or(FRAME),
            max_io_bytes: round_down(max_sectors.min(in_segments).min(MAX_IO), FRAME).max(FRAME),
            max_segments,
            rotational: flag(&texts.rotational).unwrap_or(true),
            fua: fua.unwrap_or(false),
            write_cache: write_cache.unwrap_or(WriteCache::WriteBack),
            dsync_flushes_earlier_writes: fua == Some(false)
                && write_cache == Some(WriteCache::WriteBack),
            zeroes_without_writing: number(&texts.write_zeroes_max_bytes)
                .is_some_and(|max| max > 0),
            discard_granularity: number(&texts.discard_granularity).unwrap_or(0),
        }
    }

    /// Of a file.
    ///
    /// The page cache is passed by, so requests are ours to size; what lies below the filesystem is
    /// seen through it only, so nothing is promised about DSYNC.
    pub fn of_file(facts: &FileFacts) -> PartLimits {
        PartLimits {
            block_size: facts.block_size,
            max_io_bytes: MAX_IO,
            max_segments: MAX_IO / FRAME,
            rotational: facts.rotational,
            fua: false,
            write_cache: WriteCache::WriteBack,
            dsync_flushes_earlier_writes: false,
            zeroes_without_writing: facts.punches_holes,
            discard_granularity: if facts.punches_holes {
                facts.allocation_unit
            } else {
                0
            },
        }
    }
}

fn number(text: &Option<String>) -> Option<u64> {
    text.as_ref()?.trim().parse().ok()
}

fn flag(text: &Option<String>) -> Option<bool> {
    number(text).map(|n| n != 0)
}

/// What a filesystem says about one of its files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileFacts {
    /// The unit of direct I/O.
    pub block_size: u64,
    /// The unit in which the filesystem gives out space.
    pub allocation_unit: u64,
    /// `PUNCH_HOLE` works.
    pub punches_holes: bool,
    /// The disk below is known to be rotating.
    pub rotational: bool,
}

/// Finds out the limits of a part that has just been opened and locked.
pub(super) fn find(
    kernel: &Kernel,
    located: &Located,
    file: &File,
    access: Access,
) -> Result<PartLimits, PartError> {
    let limits = match located.identity {
        Identity::Device(number) => {
            let mut texts = QueueTexts::read(kernel, number);
            // The device itself knows best; sysfs may be absent in a container.
            if let Ok(size) = rustix::fs::ioctl_blksszget(file) {
                texts.logical_block_size = Some(size.to_string());
            }
            PartLimits::of_block_device(&texts)
        }
        Identity::File { filesystem, .. } => {
            PartLimits::of_file(&file_facts(kernel, filesystem, located, file, access)?)
        }
    };
    if !(SECTOR..=FRAME).contains(&limits.block_size) || !limits.block_size.is_power_of_two() {
        return Err(PartError::BlockSize {
            path: located.path.clone(),
            found: limits.block_size,
        });
    }
    Ok(limits)
}

fn file_facts(
    kernel: &Kernel,
    filesystem: DeviceNumber,
    located: &Located,
    file: &File,
    access: Access,
) -> Result<FileFacts, PartError> {
    let inspect = |source: rustix::io::Errno| PartError::Inspect {
        path: located.path.clone(),
        what: "filesystem",
        source: source.into(),
    };
    let statfs = rustix::fs::fstatfs(file).map_err(inspect)?;
    let filesystem_type = i128::from(statfs.f_type);
    let allocation_unit = u64::try_from(statfs.f_bsize).unwrap_or(FRAME);
    let folder = located.canonical.parent();
    // Without writing nothing is punched, and the folder may be closed to us.
    let may_try = access == Access::ReadWrite;
    Ok(FileFacts {
        block_size: direct_io_unit(located, file, filesystem_type, allocation_unit)?,
        allocation_unit,
        punches_holes: always_punches(filesystem_type)
            || may_try && folder.is_some_and(punching_works_in),
        rotational: flag(&kernel.queue_text(filesystem, "rotational")).unwrap_or(false),
    })
}

/// The number of btrfs among filesystems.
const BTRFS: i128 = 0x9123_683e;

/// Filesystems that punch holes in any of their files. Not ext4: its number is that of ext2 and ext3
/// as well, whose old drivers do not.
fn always_punches(filesystem_type: i128) -> bool {
    const XFS: i128 = 0x5846_5342;
    const TMPFS: i128 = 0x0102_1994;
    const F2FS: i128 = 0xf2f5_2010;
    [XFS, BTRFS, TMPFS, F2FS].contains(&filesystem_type)
}

/// Punches a hole into a file without a name, in the same folder as the part, and sees what is there.
/// Where even that file is impossible, the answer is no.
fn punching_works_in(folder: &Path) -> bool {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let Ok(scratch) = rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR) else {
        return false;
    };
    let written = [0xa5; 2 * 4096];
    let try_it = || -> rustix::io::Result<bool> {
        let whole = rustix::io::pwrite(&scratch, &written, 0)? == written.len();
        rustix::fs::fallocate(
            &scratch,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            0,
            FRAME,
        )?;
        let mut read = [0; 4096];
        let got = rustix::io::pread(&scratch, &mut read, 0)?;
        Ok(whole && got == read.len() && read.iter().all(|byte| *byte == 0))
    };
    try_it().unwrap_or(false)
}

/// The unit of direct I/O on a file: what the kernel says, since 6.1, or the smallest that works.
///
/// btrfs says nothing and takes everything, but what is less than one of its blocks goes through the
/// page cache; so its blocks are the unit there.
fn direct_io_unit(
    located: &Located,
    file: &File,
    filesystem_type: i128,
    allocation_unit: u64,
) -> Result<u64, PartError> {
    let path = || located.path.clone();
    let wanted = StatxFlags::DIOALIGN;
    let found = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, wanted);
    if let Ok(statx) = found
        && statx.stx_mask & wanted.bits() != 0
    {
        // Zero means that this very file has no direct I/O, though the open succeeded: encrypted, or
        // with its data in the filesystem's journal.
        if statx.stx_dio_offset_align == 0 {
            return Err(PartError::NoDirectIo { path: path() });
        }
        return Ok(u64::from(statx.stx_dio_offset_align.max(statx.stx_dio_mem_align)).max(SECTOR));
    }
    if filesystem_type == BTRFS {
        return Ok(allocation_unit);
    }
    for unit in [SECTOR, 2 * SECTOR, 4 * SECTOR, FRAME] {
        match read_at_unit(file, unit) {
            Ok(()) => return Ok(unit),
            Err(rustix::io::Errno::INVAL) => {}
            Err(error) => {
                return Err(PartError::Inspect {
                    path: path(),
                    what: "unit of direct I/O",
                    source: io::Error::from(error),
                });
            }
        }
    }
    Err(PartError::NoDirectIo { path: path() })
}

/// Reads `unit` bytes at offset `unit`, into memory that is aligned to `unit` and to nothing larger.
fn read_at_unit(file: &File, unit: u64) -> rustix::io::Result<()> {
    let size = to_usize(unit);
    let mut buffer = AlignedBuffer::zeroed(2 * size);
    let got = rustix::io::pread(file, &mut buffer[size..], unit)?;
    assert!(
        to_u64(got) <= unit,
        "the kernel reads no more than it is asked for"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    //! Goal: the right limits from what the kernel writes, the careful ones from anything else.
    //! Method: texts as they were seen on real disks; real files.

    use super::*;

    fn texts(sectors: &str, segments: &str, fua: &str, cache: &str) -> QueueTexts {
        let text = |text: &str| Some(text.to_owned());
        QueueTexts {
            logical_block_size: text("512"),
            max_sectors_kb: text(sectors),
            max_segments: text(segments),
            rotational: text("0"),
            fua: text(fua),
            request_based: true,
            write_cache: text(cache),
            write_zeroes_max_bytes: text("0"),
            discard_granularity: text("4096"),
        }
    }

    #[test]
    fn the_largest_request_fits_sectors_segments_and_a_mebibyte_in_whole_frames() {
        let check = |sectors: &str, segments: &str, expected_kib: u64| {
            let limits = PartLimits::of_block_device(&texts(sectors, segments, "0", "write back"));
            assert_eq!(
                limits.max_io_bytes,
                expected_kib * KIB,
                "{sectors} KiB, {segments} segments"
            );
        };
        check("1280", "256", 1024);
        check("1280", "168", 672);
        check("127", "64", 124);
        check("127", "8", 32);
        check("1", "1", 4);
        check("0", "0", 4);
        check("18446744073709551615", "65535", 124);
        check("garbage", "65535", 124);
        check("-1", "-1", 124);
        check("2147483647", "18446744073709551615", 1024);
    }

    #[test]
    fn a_dsync_write_counts_as_a_flush_only_where_the_kernel_says_both_things() {
        let check = |fua: &str, cache: &str, expected: bool| {
            let limits = PartLimits::of_block_device(&texts("1280", "256", fua, cache));
            assert_eq!(
                limits.dsync_flushes_earlier_writes, expected,
                "fua {fua}, {cache}"
            );
        };
        check("0", "write back", true);
        check("1", "write back", false);
        check("0", "write through", false);
        check("", "write back", false);
        check("0", "", false);
        check("0", "something new", false);
    }

    #[test]
    fn a_stack_of_disks_is_not_believed_what_it_says_of_durable_writes() {
        for fua in ["0", "1"] {
            let stacked = QueueTexts {
                request_based: false,
                ..texts("1280", "256", fua, "write back")
            };
            let limits = PartLimits::of_block_device(&stacked);
            assert!(
                !limits.dsync_flushes_earlier_writes && !limits.fua,
                "fua {fua}"
            );
        }
    }

    #[test]
    fn a_disk_that_says_nothing_gets_the_careful_limits() {
        let expected = PartLimits {
            block_size: 4096,
            max_io_bytes: 124 * KIB,
            max_segments: 31,
            rotational: true,
            fua: false,
            write_cache: WriteCache::WriteBack,
            dsync_flushes_earlier_writes: false,
            zeroes_without_writing: false,
            discard_granularity: 0,
        };
        assert_eq!(
            PartLimits::of_block_device(&QueueTexts::default()),
            expected
        );
    }

    #[test]
    fn every_text_of_a_disk_is_used() {
        let text = |text: &str| Some(text.to_owned());
        let all = QueueTexts {
            logical_block_size: text("4096\n"),
            max_sectors_kb: text("256\n"),
            max_segments: text("127\n"),
            rotational: text("1\n"),
            fua: text("1\n"),
            request_based: true,
            write_cache: text("write through\n"),
            write_zeroes_max_bytes: text("131072\n"),
            discard_granularity: text("65536\n"),
        };
        let expected = PartLimits {
            block_size: 4096,
            max_io_bytes: 256 * KIB,
            max_segments: 127,
            rotational: true,
            fua: true,
            write_cache: WriteCache::WriteThrough,
            dsync_flushes_earlier_writes: false,
            zeroes_without_writing: true,
            discard_granularity: 65536,
        };
        assert_eq!(PartLimits::of_block_device(&all), expected);
    }

    #[test]
    fn a_file_that_cannot_be_punched_gives_no_space_back() {
        let facts = FileFacts {
            block_size: 512,
            allocation_unit: 4096,
            punches_holes: false,
            rotational: true,
        };
        let limits = PartLimits::of_file(&facts);
        assert!(!limits.zeroes_without_writing);
        assert_eq!(limits.discard_granularity, 0);
        assert!(limits.rotational);
        let limits = PartLimits::of_file(&FileFacts {
            punches_holes: true,
            ..facts
        });
        assert!(limits.zeroes_without_writing);
        assert_eq!(limits.discard_granularity, 4096);
        assert_eq!(limits.max_io_bytes, MAX_IO);
        assert!(!limits.dsync_flushes_earlier_writes);
    }

    #[test]
    fn punching_is_tried_in_the_parts_own_folder_and_leaves_nothing_there() {
        let folder = tempfile::tempdir().unwrap();
        assert!(punching_works_in(folder.path()));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(
            !punching_works_in(Path::new("/proc")),
            "a filesystem without such files"
        );
        assert!(!punching_works_in(&folder.path().join("absent")));
    }

    #[test]
    fn the_unit_that_the_kernel_tells_works() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [0; 16384]).unwrap();
        let located = Located::find(file.path()).unwrap();
        let opened = super::super::lock::open_direct(&located, Access::ReadOnly, 0).unwrap();
        let unit = direct_io_unit(&located, &opened, 0, 4096).unwrap();
        assert_eq!(read_at_unit(&opened, unit), Ok(()), "unit {unit}");
    }
}
