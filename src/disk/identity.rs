//! Which thing a path really means.
//!
//! Two paths may lead to one disk: a symbolic link, a second device node, a hard link. What tells is
//! the number that the kernel gives: of the device itself, or of the filesystem and the file in it.

pub use crate::kernel::{DeviceNumber, Identity, Kind};

use super::error::{PartError, Protection};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A path that was looked at, but not opened: nothing was read from what it leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Located {
    /// As it was given.
    pub path: PathBuf,
    /// Without symbolic links.
    pub canonical: PathBuf,
    /// What it leads to.
    pub identity: Identity,
    /// Bytes in a file; 0 for a block device, which only tells once it is open.
    pub file_size: u64,
}

impl Located {
    /// Looks at `path`.
    pub fn find(path: &Path) -> Result<Located, PartError> {
        let looked =
            fs::canonicalize(path).and_then(|canonical| Ok((fs::metadata(&canonical)?, canonical)));
        let (metadata, canonical) = looked.map_err(|source| cannot_find(path, source))?;
        let identity = Identity::of(&metadata).map_err(|found| PartError::NotAPart {
            path: path.into(),
            found,
        })?;
        let file_size = match identity.kind() {
            Kind::BlockDevice => 0,
            Kind::File => metadata.len(),
        };
        Ok(Located {
            path: path.into(),
            canonical,
            identity,
            file_size,
        })
    }
}

/// The error for a thing that did not open: one that is gone, one that takes no writes, or any other.
pub(super) fn cannot_open(located: &Located, source: io::Error) -> PartError {
    let path = located.path.clone();
    let protection = match (source.raw_os_error(), located.identity.kind()) {
        (Some(libc::EROFS), Kind::BlockDevice) => Protection::Device(path.clone()),
        (Some(libc::EROFS), Kind::File) => Protection::Filesystem,
        // The kernel looks at the mark before the permissions, whose answer is EACCES.
        (Some(libc::EPERM), Kind::File) => Protection::Immutable(path.clone()),
        (Some(_) | None, _) => return cannot_find(&path, source),
    };
    PartError::ReadOnly { path, protection }
}

/// The error for a path that leads to nothing that could be opened, absent things told from refused ones.
fn cannot_find(path: &Path, source: io::Error) -> PartError {
    match source.raw_os_error() {
        // ENXIO and ENODEV: the device node is there, the device is not (an empty loop device, an
        // unplugged disk).
        Some(libc::ENOENT | libc::ENOTDIR | libc::ENXIO | libc::ENODEV | libc::ENOMEDIUM) => {
            PartError::Missing { path: path.into() }
        }
        Some(libc::ELOOP) => PartError::Circle { path: path.into() },
        Some(_) | None => PartError::Open {
            path: path.into(),
            source,
        },
    }
}

#[cfg(test)]
mod tests {
    //! Goal: equal identities iff the same thing. Method: real files, links and directories.

    use super::*;

    #[test]
    fn a_file_its_hard_link_and_its_symbolic_link_are_the_same_thing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, b"12345").unwrap();
        fs::hard_link(&file, folder.path().join("hard")).unwrap();
        std::os::unix::fs::symlink("file", folder.path().join("soft")).unwrap();
        fs::write(folder.path().join("other"), b"12345").unwrap();

        let find = |name: &str| Located::find(&folder.path().join(name)).unwrap();
        assert_eq!(find("file").identity, find("hard").identity);
        assert_eq!(find("file").identity, find("soft").identity);
        assert_eq!(find("file").canonical, find("soft").canonical);
        assert_ne!(find("file").identity, find("other").identity);
        assert_eq!(find("file").identity.kind(), Kind::File);
        assert_eq!(find("file").file_size, 5);
    }

    #[test]
    fn what_can_be_no_part_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let check = |path: &Path, expected: &str| {
            let error = Located::find(path).unwrap_err();
            assert!(
                matches!(error, PartError::NotAPart { found, .. } if found == expected),
                "{error}"
            );
        };
        check(folder.path(), "directory");
        check(Path::new("/dev/null"), "character device");
        let socket = folder.path().join("socket");
        let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        check(&socket, "pipe or socket");
    }

    #[test]
    fn links_in_a_circle_are_refused_as_such() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("there", folder.path().join("here")).unwrap();
        std::os::unix::fs::symlink("here", folder.path().join("there")).unwrap();
        let error = Located::find(&folder.path().join("here")).unwrap_err();
        assert!(matches!(error, PartError::Circle { .. }), "{error}");
    }

    #[test]
    fn an_absent_path_is_missing_and_not_merely_unopenable() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("nowhere", folder.path().join("dangling")).unwrap();
        for name in ["absent", "absent/below", "dangling"] {
            let error = Located::find(&folder.path().join(name)).unwrap_err();
            assert!(
                matches!(error, PartError::Missing { .. }),
                "{name}: {error}"
            );
        }
    }
}
