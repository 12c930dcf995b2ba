//! Whether this machine can serve at all, asked before anything is touched: each lack with its remedy.

use crate::outcome::Failure;
use rustix::process::Uid;
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// The oldest kernel that is supported.
const KERNEL_MIN: (u32, u32) = (6, 12);

/// Refuses a machine without permission, ublk or `io_uring`.
pub fn check() -> Result<(), Failure> {
    check_user(rustix::process::geteuid())?;
    check_ublk(Path::new("/dev/ublk-control"), &release())?;
    check_io_uring(
        &|| io_uring::IoUring::new(4).map(drop),
        &setting("/proc/sys/kernel/io_uring_disabled"),
    )
}

fn check_user(user: Uid) -> Result<(), Failure> {
    if user.is_root() {
        return Ok(());
    }
    Err(Failure::failed("start needs root: run it with sudo"))
}

fn check_ublk(control: &Path, release: &str) -> Result<(), Failure> {
    let (major, minor) = KERNEL_MIN;
    match File::options().read(true).write(true).open(control) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(Failure::failed(
            format!("{}: permission denied: run it with sudo", control.display()),
        )),
        Err(_) if version(release).is_some_and(|version| version < KERNEL_MIN) => {
            Err(Failure::failed(format!(
                "no ublk driver: {} is not there, and this kernel is {release}: boot Linux {major}.{minor} or newer, \
             then `modprobe ublk_drv`",
                control.display()
            )))
        }
        Err(_) => Err(Failure::failed(format!(
            "no ublk driver: {} is not there: run `modprobe ublk_drv`; if there is no such module, boot a kernel \
             of Linux {major}.{minor} or newer built with CONFIG_BLK_DEV_UBLK (this one is {release})",
            control.display()
        ))),
    }
}

fn check_io_uring(set_up: &dyn Fn() -> io::Result<()>, disabled: &str) -> Result<(), Failure> {
    let Err(error) = set_up() else { return Ok(()) };
    let remedy = match disabled {
        "1" | "2" => "switched off: `sysctl kernel.io_uring_disabled=0` switches it on",
        _ if error.raw_os_error() == Some(rustix::io::Errno::NOSYS.raw_os_error()) => {
            "not in this kernel: boot one built with CONFIG_IO_URING"
        }
        _ if error.kind() == io::ErrorKind::PermissionDenied => {
            "not permitted: a container's seccomp profile must allow io_uring_setup, io_uring_enter and io_uring_register"
        }
        _ => {
            return Err(Failure::failed(format!(
                "io_uring cannot be set up: {error}"
            )));
        }
    };
    Err(Failure::failed(format!("io_uring is {remedy}")))
}

fn setting(path: &str) -> String {
    fs::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

fn release() -> String {
    setting("/proc/sys/kernel/osrelease")
}

/// `6.12.118-cloud-amd64` is version 6.12.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(result: Result<(), Failure>) -> String {
        let failure = result.expect_err("a lack");
        assert_eq!(failure.exit, crate::outcome::Exit::Failed);
        failure.message
    }

    #[test]
    fn a_missing_driver_is_told_with_its_remedy() {
        let gone = Path::new("/dev/no-such-control");
        assert_eq!(
            message(check_ublk(gone, "6.18.4-amd64")),
            "no ublk driver: /dev/no-such-control is not there: run `modprobe ublk_drv`; if there is no such \
             module, boot a kernel of Linux 6.12 or newer built with CONFIG_BLK_DEV_UBLK (this one is 6.18.4-amd64)"
        );
        assert_eq!(
            message(check_ublk(gone, "6.1.0-57-amd64")),
            "no ublk driver: /dev/no-such-control is not there, and this kernel is 6.1.0-57-amd64: boot Linux \
             6.12 or newer, then `modprobe ublk_drv`"
        );
        check_ublk(Path::new("/dev/null"), "").expect("something that opens");
    }

    #[test]
    fn io_uring_that_is_off_is_told_with_its_remedy() {
        let failing = |errno: rustix::io::Errno| move || Err(io::Error::from(errno));
        for (errno, disabled, start) in [
            (
                rustix::io::Errno::PERM,
                "2",
                "io_uring is switched off: `sysctl",
            ),
            (
                rustix::io::Errno::PERM,
                "0",
                "io_uring is not permitted: a container's",
            ),
            (
                rustix::io::Errno::NOSYS,
                "",
                "io_uring is not in this kernel: boot",
            ),
            (rustix::io::Errno::NOMEM, "0", "io_uring cannot be set up: "),
        ] {
            let found = message(check_io_uring(&failing(errno), disabled));
            assert!(found.starts_with(start), "{found}");
        }
        check_io_uring(&|| Ok(()), "2").expect("what works is not asked about");
    }

    #[test]
    fn only_root_may_start() {
        check_user(Uid::ROOT).expect("root");
        assert_eq!(
            message(check_user(Uid::from_raw(1000))),
            "start needs root: run it with sudo"
        );
    }

    #[test]
    fn kernel_releases_are_compared_by_number() {
        for (release, expected) in [
            ("6.12.118-cloud-amd64", Some((6, 12))),
            ("6.1.0-57-amd64", Some((6, 1))),
            ("7.2-rc1", Some((7, 2))),
            ("", None),
            ("next", None),
            ("99999999999.1", None),
        ] {
            assert_eq!(version(release), expected, "{release}");
        }
    }
}
