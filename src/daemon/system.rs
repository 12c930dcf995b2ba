//! What sets the daemon apart from other processes: its mounts, its memory, its descriptors.
//!
//! Two calls here have no safe form; each is one line, and nothing else in this layer needs any.
//!
//! **Mounts.** A process that dies while it is the last to see a filesystem on its own device waits for
//! itself for ever. So the daemon has a mount namespace of its own, which follows the host's (slave, not
//! private: otherwise a filesystem that holds a part could be unmounted under us) and in which nothing
//! that lies on our device stays mounted. Where the host's mounts are not shared, as without systemd, none
//! of that would follow: the daemon would keep every filesystem of the machine mounted. It stays in the
//! host's namespace then, in which it is never the last.
//!
//! **Memory.** While the kernel writes to our device in order to free memory, we may not need memory
//! ourselves: all of it is locked, now and later, and allocations of this process do not wait for
//! writeback (`PR_SET_IO_FLUSHER`, which threads inherit).

#![expect(unsafe_code, reason = "unshare and close_range have no safe form")]

use crate::kernel::{Kernel, device_at};
use crate::outcome::Failure;
use rustix::mm::MlockAllFlags;
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::thread::UnshareFlags;
use std::io;
use std::path::{Path, PathBuf};

/// Whose mounts the process sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mounts {
    /// Its own, which follow the host's.
    Own,
    /// The host's.
    Hosts,
}

/// Sets the process apart. To be called while it has one thread, or at least before any that counts.
pub fn isolate() -> Result<Mounts, Failure> {
    let mounts = isolate_mounts()?;
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        // The I/O thread insists on it for itself; here it only spares the control thread some waiting.
        tracing::warn!("the control thread is no I/O flusher (CAP_SYS_RESOURCE): {error}");
    }
    rustix::mm::mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE).map_err(|error| {
        Failure::failed(format!("cannot lock its memory (CAP_IPC_LOCK): {error}"))
    })?;
    Ok(mounts)
}

fn isolate_mounts() -> Result<Mounts, Failure> {
    if !Kernel::running().mounts_are_shared() {
        tracing::debug!("the mounts of this machine are not shared: no namespace of its own");
        return Ok(Mounts::Hosts);
    }
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
    Ok(Mounts::Own)
}

/// Takes what is mounted from `device`, or from something on top of it, out of this process's own mounts.
/// Elsewhere it stays mounted.
pub fn detach_mounts_of(device: &Path) {
    let Some(number) = device_at(device) else {
        return;
    };
    let kernel = Kernel::running();
    let mounts = kernel.own_mounts().into_iter();
    let ours = mounts.filter(|mount| kernel.lies_on(mount, number));
    // What was mounted last goes first.
    let points: Vec<PathBuf> = ours.map(|mount| mount.point).collect();
    for point in points.into_iter().rev() {
        match rustix::mount::unmount(&point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => tracing::debug!("{}: no longer among our mounts", point.display()),
            Err(error) => tracing::warn!("{}: stays among our mounts: {error}", point.display()),
        }
    }
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

    #[test]
    fn descriptors_are_kept_from_children() {
        let file = std::fs::File::open("/dev/null").expect("opened");
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).expect("set");
        keep_descriptors_from_children().expect("kept");
        assert_eq!(
            rustix::io::fcntl_getfd(&file).expect("got"),
            rustix::io::FdFlags::CLOEXEC
        );
    }
}
