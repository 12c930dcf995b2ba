//! One real part: a block device or a file, opened for direct I/O and fenced.
//!
//! [`Part`] is what label, check, recovery and stop work on, and where the ring gets its descriptor.
//! It owns the open file, and with it the lock (see [`super::lock`]): dropping it ends the fence.
//!
//! It promises what [`Disk`] says, and one thing more: after a failed flush no later flush succeeds,
//! because the kernel reports a lost write once and then forgets it.

use super::buffer::{AlignedBuffer, is_aligned};
use super::error::{PartError, Protection};
use super::identity::{Identity, Kind, Located, cannot_open};
use super::limits::{self, PartLimits};
use super::lock::{self, Waiting};
use super::{Disk, DiskError, DiskOp};
use crate::kernel::Kernel;
use crate::units::{MIB, Offset, SECTOR, round_down, to_u64, to_usize};
use rustix::fs::{AtFlags, FallocateFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// What will be done with a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Nothing is written to it.
    ReadOnly,
    /// It may be changed.
    ReadWrite,
}

/// An open part.
#[derive(Debug)]
pub struct Part {
    file: File,
    located: Located,
    /// Whole blocks only: the bytes behind them cannot be reached by direct I/O.
    size: u64,
    limits: PartLimits,
    /// The kernel has told once that what was written may be lost.
    flush_failed: bool,
}

impl Part {
    /// Opens and locks a part; refused at once if anybody else uses it.
    pub fn open(path: &Path, access: Access) -> Result<Part, PartError> {
        Part::open_patiently(path, access, Duration::ZERO, &mut |_| {})
    }

    /// Like [`Part::open`], but waits for the end of I/O that a dead process left in flight, at most
    /// `patience` (see [`lock::PATIENCE`]), and tells `progress` about it every second.
    pub fn open_patiently(
        path: &Path,
        access: Access,
        patience: Duration,
        progress: &mut dyn FnMut(Waiting<'_>),
    ) -> Result<Part, PartError> {
        let kernel = Kernel::running();
        let located = Located::find(path)?;
        kernel
            .check_visible()
            .map_err(|source| PartError::Inspect {
                path: located.path.clone(),
                what: "users (are /proc and /sys mounted?)",
                source,
            })?;
        let file = lock::acquire(&kernel, &located, access, patience, progress)?;
        if access == Access::ReadWrite {
            check_device_writable(&kernel, &located)?;
        }
        Part::of(&kernel, located, file, access)
    }

    /// Opens a part read-only and without the fence, to look at what somebody may be changing: for
    /// `dump` of a running array, and for nothing that decides.
    pub fn open_unfenced(path: &Path) -> Result<Part, PartError> {
        let located = Located::find(path)?;
        let file = lock::open_direct(&located, Access::ReadOnly, 0)?;
        Part::of(&Kernel::running(), located, file, Access::ReadOnly)
    }

    fn of(
        kernel: &Kernel,
        located: Located,
        mut file: File,
        access: Access,
    ) -> Result<Part, PartError> {
        let limits = limits::find(kernel, &located, &file, access)?;
        let found = file.seek(SeekFrom::End(0));
        let inspect = |source| PartError::Inspect {
            path: located.path.clone(),
            what: "size",
            source,
        };
        let bytes = found.map_err(inspect)?;
        if bytes == 0 && located.identity.kind() == Kind::BlockDevice {
            // A loop device over nothing opens like any other.
            return Err(PartError::Missing { path: located.path });
        }
        Ok(Part {
            file,
            size: round_down(bytes, limits.block_size),
            located,
            limits,
            flush_failed: false,
        })
    }

    /// As it was given.
    pub fn path(&self) -> &Path {
        &self.located.path
    }

    /// A block device or a file.
    pub fn kind(&self) -> Kind {
        self.located.identity.kind()
    }

    /// Which one.
    pub fn identity(&self) -> Identity {
        self.located.identity
    }

    /// What it can do.
    pub fn limits(&self) -> &PartLimits {
        &self.limits
    }

    /// Bytes of a file that have no space yet, so that the first write to them is slow and may find
    /// the filesystem full; `None` if all have, and for block devices.
    pub fn unallocated(&self) -> Result<Option<u64>, PartError> {
        match self.kind() {
            Kind::BlockDevice => Ok(None),
            Kind::File => {
                let inspect = |source| PartError::Inspect {
                    path: self.located.path.clone(),
                    what: "allocation",
                    source,
                };
                let metadata = self.file.metadata().map_err(inspect)?;
                let allocated = metadata.blocks().saturating_mul(SECTOR);
                Ok(metadata
                    .len()
                    .checked_sub(allocated)
                    .filter(|missing| *missing > 0))
            }
        }
    }

    /// Bytes that the filesystem that holds a file still has; `None` if it does not say, and for block
    /// devices.
    pub fn free_space(&self) -> Option<u64> {
        if self.kind() == Kind::BlockDevice {
            return None;
        }
        let filesystem = rustix::fs::fstatvfs(&self.file).ok()?;
        // Memory without a limit says that it has no blocks at all.
        (filesystem.f_blocks > 0).then(|| filesystem.f_bfree.saturating_mul(filesystem.f_frsize))
    }

    fn error(&self, op: DiskOp, offset: Offset, len: u64, source: io::Error) -> DiskError {
        DiskError {
            part: self.name(),
            op,
            offset,
            len,
            source,
        }
    }

    /// Refuses a range beyond the end; a misaligned one is our bug.
    fn check(&self, op: DiskOp, offset: Offset, len: u64) -> Result<(), DiskError> {
        super::check_range(&self.located.path.display(), op, offset, len, self.size)?;
        let unit = self.limits.block_size;
        assert!(
            offset.0.is_multiple_of(unit),
            "offset {offset} is a multiple of {unit}"
        );
        assert!(
            len.is_multiple_of(unit),
            "length {len} is a multiple of {unit}"
        );
        Ok(())
    }

    /// Where to go on after a transfer of `moved` bytes at `done`: direct I/O continues at a block.
    fn continued(&self, done: usize, moved: usize) -> io::Result<usize> {
        let next = to_usize(round_down(to_u64(done + moved), self.limits.block_size));
        if next == done {
            return Err(io::Error::other(format!(
                "the transfer stopped after {moved} bytes"
            )));
        }
        Ok(next)
    }

    fn read_whole(&self, offset: Offset, buffer: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < buffer.len() {
            let rest = &mut buffer[done..];
            let moved =
                patiently(|| rustix::io::pread(&self.file, &mut *rest, offset.0 + to_u64(done)))?;
            done = self.continued(done, moved)?;
        }
        Ok(())
    }

    fn write_whole(&self, offset: Offset, buffer: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < buffer.len() {
            let moved = patiently(|| {
                rustix::io::pwrite(&self.file, &buffer[done..], offset.0 + to_u64(done))
            })?;
            done = self.continued(done, moved)?;
        }
        Ok(())
    }

    fn write_zeroes(&self, offset: Offset, len: u64) -> io::Result<()> {
        let zeroes = AlignedBuffer::zeroed(to_usize(len.min(MIB)));
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(to_u64(zeroes.len()));
            self.write_whole(offset.plus(done), &zeroes[..to_usize(piece)])?;
            done += piece;
        }
        Ok(())
    }
}

/// Refuses what [`Part::open`] for writing would refuse because it takes no writes, without opening it.
/// Whether the caller has the permission is not asked.
pub fn check_writable(located: &Located) -> Result<(), PartError> {
    match located.identity.kind() {
        Kind::BlockDevice => check_device_writable(&Kernel::running(), located),
        Kind::File => {
            let asked = rustix::fs::accessat(
                rustix::fs::CWD,
                &located.canonical,
                rustix::fs::Access::WRITE_OK,
                AtFlags::EACCESS,
            );
            match asked.map_err(|errno| cannot_open(located, errno.into())) {
                Err(error @ PartError::ReadOnly { .. }) => Err(error),
                Ok(()) | Err(_) => Ok(()),
            }
        }
    }
}

/// A read-only device opens for writing like any other.
fn check_device_writable(kernel: &Kernel, located: &Located) -> Result<(), PartError> {
    match located.identity {
        Identity::Device(number) if kernel.is_read_only(number) => Err(PartError::ReadOnly {
            path: located.path.clone(),
            protection: Protection::Device(located.path.clone()),
        }),
        Identity::Device(_) | Identity::File { .. } => Ok(()),
    }
}

impl Disk for Part {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&mut self, offset: Offset, buffer: &mut [u8]) -> Result<(), DiskError> {
        let len = to_u64(buffer.len());
        self.check(DiskOp::Read, offset, len)?;
        assert!(
            buffer.is_empty() || is_aligned(buffer, self.limits.block_size),
            "the buffer is aligned"
        );
        self.read_whole(offset, buffer)
            .map_err(|source| self.error(DiskOp::Read, offset, len, source))
    }

    fn write(&mut self, offset: Offset, buffer: &[u8]) -> Result<(), DiskError> {
        let len = to_u64(buffer.len());
        self.check(DiskOp::Write, offset, len)?;
        assert!(
            buffer.is_empty() || is_aligned(buffer, self.limits.block_size),
            "the buffer is aligned"
        );
        self.write_whole(offset, buffer)
            .map_err(|source| self.error(DiskOp::Write, offset, len, source))
    }

    fn flush(&mut self) -> Result<(), DiskError> {
        let flushed = if self.flush_failed {
            Err(io::Error::other(
                "an earlier flush failed, and what it covered may be lost",
            ))
        } else {
            // Never made again, whatever it says: the second one would know nothing of what the first has lost.
            rustix::fs::fdatasync(&self.file).map_err(io::Error::from)
        };
        self.flush_failed = flushed.is_err();
        flushed.map_err(|source| self.error(DiskOp::Flush, Offset(0), self.size, source))
    }

    fn zero(&mut self, offset: Offset, len: u64) -> Result<(), DiskError> {
        self.check(DiskOp::Zero, offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punched = patiently(|| rustix::fs::fallocate(&self.file, punch, offset.0, len));
        let zeroed = match punched {
            Err(error) if is_unsupported(&error) => self.write_zeroes(offset, len),
            other => other,
        };
        zeroed.map_err(|source| self.error(DiskOp::Zero, offset, len, source))
    }

    fn name(&self) -> String {
        self.located.path.display().to_string()
    }
}

impl AsFd for Part {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl AsRawFd for Part {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENODEV)
    )
}

/// How often a call that the kernel asks to repeat is repeated, and the first pause; each is twice the
/// one before, about a second together.
const AGAIN_TRIES: u32 = 10;
const AGAIN_PAUSE: Duration = Duration::from_millis(1);

/// Makes a system call until it is neither interrupted nor, within reason, asked to come again.
fn patiently<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    let mut again = 0;
    loop {
        match call() {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if again < AGAIN_TRIES => {
                std::thread::sleep(AGAIN_PAUSE * 2_u32.pow(again));
                again += 1;
            }
            other => return other.map_err(io::Error::from),
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a file is a part that keeps the contract of `Disk`. Method: the conformance suite over a
    //! file on this machine's filesystem and on tmpfs; single facts by hand. Block devices are in
    //! `device_tests`.

    use super::*;
    use std::os::unix::fs::FileExt;
    use tempfile::NamedTempFile;

    fn file_in(folder: &Path) -> (NamedTempFile, Part) {
        let file = NamedTempFile::new_in(folder).unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let part = Part::open(file.path(), Access::ReadWrite).unwrap();
        (file, part)
    }

    mod on_disk {
        crate::disk::conformance::suite!({
            let (file, part) = super::file_in(&std::env::temp_dir());
            (part, file)
        });
    }

    mod on_tmpfs {
        crate::disk::conformance::suite!({
            let (file, part) = super::file_in(std::path::Path::new("/dev/shm"));
            (part, file)
        });
    }

    #[test]
    fn what_is_written_arrives_in_the_file() {
        let (file, mut part) = file_in(&std::env::temp_dir());
        let mut buffer = AlignedBuffer::zeroed(4096);
        buffer.fill(0x5a);
        part.write(Offset(8192), &buffer).unwrap();
        part.flush().unwrap();
        let mut read = [0; 4098];
        file.as_file().read_exact_at(&mut read, 8191).unwrap();
        assert_eq!(
            (read[0], read[1], read[4096], read[4097]),
            (0, 0x5a, 0x5a, 0)
        );
    }

    #[test]
    fn bytes_behind_the_last_whole_block_are_not_part_of_it() {
        let file = NamedTempFile::new().unwrap();
        file.as_file().set_len((1 << 16) + 100).unwrap();
        let part = Part::open(file.path(), Access::ReadWrite).unwrap();
        assert_eq!(part.size(), 1 << 16);
    }

    #[test]
    fn an_empty_file_is_a_part_of_no_bytes() {
        let file = NamedTempFile::new().unwrap();
        let mut part = Part::open(file.path(), Access::ReadWrite).unwrap();
        assert_eq!(part.size(), 0);
        part.read(Offset(0), &mut []).unwrap();
        part.read(Offset(0), &mut AlignedBuffer::zeroed(4096))
            .unwrap_err();
    }

    #[test]
    fn a_file_that_shrinks_under_an_open_part_is_an_error_and_no_endless_loop() {
        let (file, mut part) = file_in(&std::env::temp_dir());
        file.as_file().set_len(4096).unwrap();
        let error = part
            .read(Offset(0), &mut AlignedBuffer::zeroed(8192))
            .unwrap_err();
        assert!(
            error.source.to_string().contains("stopped after 0 bytes"),
            "{error}: {}",
            error.source
        );
    }

    #[test]
    fn a_read_only_part_is_read_and_not_written() {
        let file = NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let mut part = Part::open(file.path(), Access::ReadOnly).unwrap();
        part.read(Offset(0), &mut AlignedBuffer::zeroed(4096))
            .unwrap();
        let error = part
            .write(Offset(0), &AlignedBuffer::zeroed(4096))
            .unwrap_err();
        assert_eq!(error.source.raw_os_error(), Some(libc::EBADF));
        assert_eq!(
            (error.op, error.offset, error.len),
            (DiskOp::Write, Offset(0), 4096)
        );
        assert_eq!(error.part, file.path().display().to_string());
    }

    #[test]
    fn a_file_without_direct_io_is_refused_in_those_words() {
        // Files of /proc are regular, and go through no page cache that could be passed by.
        let error = Part::open(Path::new("/proc/version"), Access::ReadOnly).unwrap_err();
        assert!(matches!(error, PartError::NoDirectIo { .. }), "{error}");
        assert!(error.to_string().starts_with("/proc/version: "), "{error}");
    }

    #[test]
    fn an_unfenced_part_can_be_looked_at_while_it_is_in_use() {
        let (file, _part) = file_in(&std::env::temp_dir());
        let mut looked = Part::open_unfenced(file.path()).unwrap();
        looked
            .read(Offset(0), &mut AlignedBuffer::zeroed(4096))
            .unwrap();
        looked
            .write(Offset(0), &AlignedBuffer::zeroed(4096))
            .unwrap_err();
    }

    #[test]
    fn a_sparse_file_says_how_much_is_missing() {
        let (_file, mut part) = file_in(&std::env::temp_dir());
        assert_eq!(part.unallocated().unwrap(), Some(1 << 20));
        part.write_zeroes(Offset(0), 1 << 20).unwrap();
        part.flush().unwrap();
        assert_eq!(part.unallocated().unwrap(), None);
        part.zero(Offset(0), 1 << 19).unwrap();
        part.flush().unwrap();
        assert_eq!(
            part.unallocated().unwrap(),
            Some(1 << 19),
            "zeroing gave the space back"
        );
    }

    #[test]
    fn after_a_failed_flush_no_flush_succeeds_even_if_the_disk_does_again() {
        let (_file, mut part) = file_in(&std::env::temp_dir());
        let (no_disk, _other_end) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let disk = std::mem::replace(
            &mut part.file,
            File::from(std::os::fd::OwnedFd::from(no_disk)),
        );
        let first = part.flush().unwrap_err();
        assert_eq!(
            (first.op, first.source.raw_os_error()),
            (DiskOp::Flush, Some(libc::EINVAL))
        );
        part.file = disk;
        let second = part.flush().unwrap_err();
        assert!(
            second
                .source
                .to_string()
                .contains("an earlier flush failed"),
            "{}",
            second.source
        );
    }

    #[test]
    fn where_no_hole_can_be_punched_zeroes_are_written() {
        let (_file, mut part) = file_in(&std::env::temp_dir());
        // It has no fallocate, and answers every write with this error.
        part.file = File::options().write(true).open("/dev/full").unwrap();
        let error = part.zero(Offset(0), 4096).unwrap_err();
        assert_eq!(
            (error.op, error.source.raw_os_error()),
            (DiskOp::Zero, Some(libc::ENOSPC))
        );
    }

    #[test]
    fn interrupted_calls_are_made_again_and_others_only_within_reason() {
        let mut calls = 0;
        let mut interrupted_twice = || {
            calls += 1;
            if calls < 3 {
                Err(Errno::INTR)
            } else {
                Ok(calls)
            }
        };
        assert_eq!(patiently(&mut interrupted_twice).unwrap(), 3);

        let mut calls = 0;
        let mut always_again = || -> rustix::io::Result<()> {
            calls += 1;
            Err(Errno::AGAIN)
        };
        assert_eq!(
            patiently(&mut always_again).unwrap_err().raw_os_error(),
            Some(libc::EAGAIN)
        );
        assert_eq!(calls, AGAIN_TRIES + 1);

        let error = patiently(|| -> rustix::io::Result<()> { Err(Errno::IO) }).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
    }

    #[test]
    fn a_short_transfer_goes_on_at_a_whole_block() {
        let (_file, part) = file_in(&std::env::temp_dir());
        let unit = to_usize(part.limits.block_size);
        assert_eq!(part.continued(0, unit + 1).unwrap(), unit);
        assert_eq!(part.continued(unit, 2 * unit).unwrap(), 3 * unit);
        part.continued(unit, unit - 1).unwrap_err();
        part.continued(0, 0).unwrap_err();
    }

    #[test]
    #[should_panic(expected = "is a multiple of")]
    fn a_misaligned_offset_is_our_bug() {
        let (_file, mut part) = file_in(&std::env::temp_dir());
        part.read(Offset(1), &mut AlignedBuffer::zeroed(4096))
            .unwrap();
    }

    #[test]
    #[should_panic(expected = "the buffer is aligned")]
    fn a_misaligned_buffer_is_our_bug() {
        let (_file, mut part) = file_in(&std::env::temp_dir());
        part.read(Offset(0), &mut AlignedBuffer::zeroed(8192)[1..4097])
            .unwrap();
    }
}
