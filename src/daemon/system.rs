//! What sets the daemon apart from other processes: its mounts, its memory, its descriptors.
//!
//! Two calls here have no safe form; each is one line, and nothing else in this layer needs any.
//!
//! **Mounts.** A process that dies while it is the last to see a filesystem on its own device waits for
//! itself for ever. So the daemon has a mount namespace of its own, which follows the host's (slave, not
//! private: otherwise a filesystem that holds a part could be unmounted under us) and in which nothing
//! that lies on our device stays mounted.
//!
//! **Memory.** While the kernel writes to our device in order to free memory, we may not need memory
//! ourselves: all of it is locked, now and later, and allocations of this process do not wait for
//! writeback (`PR_SET_IO_FLUSHER`, which threads inherit).

#![expect(unsafe_code, reason = "unshare and close_range have no safe form")]

use crate::control::in_use::{Mount, parse_mountinfo};
use crate::outcome::Failure;
use rustix::mm::MlockAllFlags;
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::thread::UnshareFlags;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// Layers of device mapper, md and loop that are followed down.
const STACK_MAX: usize = 16;

/// Sets the process apart. To be called while it has one thread, or at least before any that counts.
pub fn isolate() -> Result<(), Failure> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |error: rustix::io::Errno| Failure::failed(format!("{what}: {error}"))
    };
    // SAFETY: CLONE_NEWNS leaves the table of descriptors alone, which is what makes the general call
    // unsafe.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }
        .map_err(failed("cannot have a mount namespace of its own"))?;
    let follow = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", follow).map_err(failed("cannot set its mounts apart"))?;
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        // The I/O thread insists on it for itself; here it only spares the control thread some waiting.
        tracing::warn!("the control thread is no I/O flusher (CAP_SYS_RESOURCE): {error}");
    }
    rustix::mm::mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE)
        .map_err(failed("cannot lock its memory (CAP_IPC_LOCK)"))
}

/// Takes what is mounted from `device`, or from something on top of it, out of this process's mounts.
/// Elsewhere it stays mounted.
pub fn detach_mounts_of(device: &Path) {
    let Some(number) = device_number(device) else {
        return;
    };
    let mountinfo = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let ours = parse_mountinfo(&mountinfo)
        .into_iter()
        .filter(|mount| lies_on(mount, number));
    // What was mounted last goes first.
    let points: Vec<PathBuf> = ours.map(|mount| mount.point).collect();
    for point in points.into_iter().rev() {
        match rustix::mount::unmount(&point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => tracing::debug!("{}: no longer among our mounts", point.display()),
            Err(error) => tracing::warn!("{}: stays among our mounts: {error}", point.display()),
        }
    }
}

fn device_number(path: &Path) -> Option<u64> {
    let found = fs::metadata(path).ok()?;
    found.file_type().is_block_device().then(|| found.rdev())
}

/// Some filesystems (btrfs) have numbers of their own: there the name of the source tells.
fn lies_on(mount: &Mount, device: u64) -> bool {
    let by_name = mount
        .source
        .starts_with("/dev")
        .then(|| device_number(&mount.source))
        .flatten();
    [Some(mount.device), by_name]
        .into_iter()
        .flatten()
        .any(|found| stands_on(&system_folder(found), &system_folder(device), STACK_MAX))
}

fn system_folder(number: u64) -> PathBuf {
    let link = format!(
        "/sys/dev/block/{}:{}",
        rustix::fs::major(number),
        rustix::fs::minor(number)
    );
    fs::canonicalize(&link).unwrap_or_else(|_| PathBuf::from(link))
}

/// Whether the device in folder `upper` is the one in `lower`, a partition of it, or on top of it.
fn stands_on(upper: &Path, lower: &Path, depth: usize) -> bool {
    if upper.starts_with(lower) {
        return true;
    }
    let Some(depth) = depth.checked_sub(1) else {
        return false;
    };
    let slaves = fs::read_dir(upper.join("slaves"))
        .into_iter()
        .flatten()
        .flatten();
    slaves
        .filter_map(|slave| fs::canonicalize(slave.path()).ok())
        .any(|slave| stands_on(&slave, lower, depth))
}

/// Keeps every descriptor but the first three from what is executed next: a lock or a pipe of the
/// caller must not live as long as the daemon.
pub(super) fn keep_descriptors_from_children() -> io::Result<()> {
    // SAFETY: this only sets FD_CLOEXEC; no descriptor is closed or changes hands in this process.
    let result = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            3_u32,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_mount_is_followed_down_through_partitions_and_layers() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().canonicalize().expect("a path");
        let device = root.join("block/ublkb0");
        let partition = device.join("ublkb0p1");
        let other = root.join("block/ublkb01");
        let [lower, upper] = ["dm-0", "dm-1"].map(|name| root.join("block").join(name));
        for path in [
            &partition,
            &other,
            &lower.join("slaves"),
            &upper.join("slaves"),
        ] {
            fs::create_dir_all(path).expect("made");
        }
        symlink(&partition, lower.join("slaves/ublkb0p1")).expect("linked");
        symlink(&lower, upper.join("slaves/dm-0")).expect("linked");
        for (path, expected) in [
            (&device, true),
            (&partition, true),
            (&lower, true),
            (&upper, true),
            (&other, false),
        ] {
            assert_eq!(
                stands_on(path, &device, STACK_MAX),
                expected,
                "{}",
                path.display()
            );
        }
        // A ring of layers, which the kernel never makes, ends all the same.
        symlink(&upper, other.join("loop")).expect("linked");
        fs::create_dir(other.join("slaves")).expect("made");
        symlink(&other, other.join("slaves/self")).expect("linked");
        assert!(!stands_on(&other, &device, STACK_MAX));
    }

    #[test]
    fn descriptors_are_kept_from_children() {
        let file = fs::File::open("/dev/null").expect("opened");
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).expect("set");
        keep_descriptors_from_children().expect("kept");
        assert_eq!(
            rustix::io::fcntl_getfd(&file).expect("got"),
            rustix::io::FdFlags::CLOEXEC
        );
    }
}
