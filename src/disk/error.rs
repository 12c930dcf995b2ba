//! Why a part cannot be used.

use super::lock::InUse;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// What keeps a part from being changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Protection {
    /// The block device takes no writes.
    Device(PathBuf),
    /// The filesystem that holds the file is mounted read-only.
    Filesystem,
    /// The file itself is marked so.
    Immutable(PathBuf),
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Protection::Device(path) => write!(
                f,
                "is read-only; make it writable: blockdev --setrw {}",
                path.display()
            ),
            Protection::Filesystem => f.write_str(
                "the filesystem that holds it is mounted read-only; make it writable: mount -o remount,rw",
            ),
            Protection::Immutable(path) => write!(
                f,
                "is marked as immutable or append-only; make it writable: chattr -i -a {}",
                path.display()
            ),
        }
    }
}

/// A path that cannot serve as a part.
#[derive(Debug, thiserror::Error)]
pub enum PartError {
    /// Nothing is there, or a device node without its device.
    #[error(
        "{path}: there is no such disk or file; check the path and whether the disk is connected"
    )]
    Missing {
        /// As it was given.
        path: PathBuf,
    },
    /// Symbolic links that lead to each other.
    #[error("{path}: its symbolic links lead in a circle; correct the path")]
    Circle {
        /// As it was given.
        path: PathBuf,
    },
    /// It is there, but does not open.
    #[error("{path}: cannot be opened; check its permissions")]
    Open {
        /// As it was given.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// It is to be changed, and does not let itself be.
    #[error("{path}: {protection}")]
    ReadOnly {
        /// As it was given.
        path: PathBuf,
        /// By what, with the remedy.
        protection: Protection,
    },
    /// Something else than a disk or a file.
    #[error("{path}: is a {found}, expected a block device or a regular file")]
    NotAPart {
        /// As it was given.
        path: PathBuf,
        /// What it is.
        found: &'static str,
    },
    /// A file that only the page cache may read and write.
    #[error(
        "{path}: the filesystem that holds it refuses direct I/O (O_DIRECT); put it on one that does not, such as ext4, XFS or btrfs, or use a block device"
    )]
    NoDirectIo {
        /// As it was given.
        path: PathBuf,
    },
    /// Its smallest unit of I/O is larger than ours, or nonsense.
    #[error(
        "{path}: direct I/O works in units of {found} bytes there, expected 512, 1024, 2048 or 4096"
    )]
    BlockSize {
        /// As it was given.
        path: PathBuf,
        /// What the kernel or the filesystem says.
        found: u64,
    },
    /// Something about it cannot be found out.
    #[error("{path}: cannot find out its {what}")]
    Inspect {
        /// As it was given.
        path: PathBuf,
        /// What was wanted.
        what: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The path led to one thing when it was looked at and to another when it was opened.
    #[error("{path}: was replaced by something else while it was being opened; try again")]
    Replaced {
        /// As it was given.
        path: PathBuf,
    },
    /// Its filesystem knows no locks.
    #[error("{path}: cannot be locked (flock); put the file on a filesystem that can")]
    Lock {
        /// As it was given.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// Somebody else has it.
    #[error(transparent)]
    InUse(#[from] InUse),
}
