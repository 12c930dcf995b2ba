//! What the kernel calls a device or a file: the numbers by which two names are known to mean one thing.

use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::str::FromStr;

/// The kernel's number of a block device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeviceNumber {
    /// The driver.
    pub major: u32,
    /// Which of its devices.
    pub minor: u32,
}

impl DeviceNumber {
    fn from_raw(device: u64) -> DeviceNumber {
        DeviceNumber {
            major: rustix::fs::major(device),
            minor: rustix::fs::minor(device),
        }
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// The text is not of the form `major:minor`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("expected a device number like 8:16")]
pub struct NotADeviceNumber;

impl FromStr for DeviceNumber {
    type Err = NotADeviceNumber;

    fn from_str(text: &str) -> Result<DeviceNumber, NotADeviceNumber> {
        let (major, minor) = text.trim().split_once(':').ok_or(NotADeviceNumber)?;
        let number = |text: &str| text.parse().map_err(|_| NotADeviceNumber);
        Ok(DeviceNumber {
            major: number(major)?,
            minor: number(minor)?,
        })
    }
}

/// What a part is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A block device.
    BlockDevice,
    /// A regular file.
    File,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::BlockDevice => "block device",
            Kind::File => "file",
        })
    }
}

/// The same for two paths iff they lead to the same thing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Identity {
    /// A block device (`st_rdev`).
    Device(DeviceNumber),
    /// A file (`st_dev` and `st_ino`).
    File {
        /// The filesystem that it is on.
        filesystem: DeviceNumber,
        /// Its number there.
        inode: u64,
    },
}

impl Identity {
    /// Of what `metadata` describes, or what that is if it can be no part.
    pub fn of(metadata: &Metadata) -> Result<Identity, &'static str> {
        let file_type = metadata.file_type();
        if file_type.is_block_device() {
            Ok(Identity::Device(DeviceNumber::from_raw(metadata.rdev())))
        } else if file_type.is_file() {
            Ok(Identity::File {
                filesystem: DeviceNumber::from_raw(metadata.dev()),
                inode: metadata.ino(),
            })
        } else if file_type.is_dir() {
            Err("directory")
        } else if file_type.is_char_device() {
            Err("character device")
        } else {
            Err("pipe or socket")
        }
    }

    /// A block device or a file.
    pub fn kind(self) -> Kind {
        match self {
            Identity::Device(_) => Kind::BlockDevice,
            Identity::File { .. } => Kind::File,
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Identity::Device(number) => write!(f, "block device {number}"),
            Identity::File { filesystem, inode } => {
                write!(f, "inode {inode} of filesystem {filesystem}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_number_is_read_and_written_the_same_way() {
        assert_eq!(
            "8:16\n".parse(),
            Ok(DeviceNumber {
                major: 8,
                minor: 16
            })
        );
        assert_eq!(
            DeviceNumber {
                major: 8,
                minor: 16
            }
            .to_string(),
            "8:16"
        );
        for wrong in [
            "",
            "8",
            "8:",
            ":16",
            "8:x",
            "-1:2",
            "8:16:1",
            "99999999999:0",
        ] {
            assert_eq!(
                wrong.parse::<DeviceNumber>(),
                Err(NotADeviceNumber),
                "{wrong}"
            );
        }
    }
}
