//! What the kernel says about disks and their users: `/sys` and `/proc`, read tolerantly.
//!
//! Every file here is text that differs between kernels, may be missing, and may change while it is
//! read. So nothing fails: what is absent or unreadable is `None` or an empty list, and the callers
//! treat that as "nobody says so" and stay on the careful side.
//!
//! All paths hang below one root, `/` in real life, so that a test can lay out a machine with disks,
//! partitions and users that this one does not have.
//!
//! This is the only place that parses them. Disks are here, their users in [`mounts`] and
//! [`processes`], and the numbers that tell whether two names mean one thing in [`identity`].

pub mod identity;
pub mod mounts;
pub mod processes;

pub use identity::{DeviceNumber, Identity, Kind};
pub use mounts::Mount;
pub use processes::{Life, Opening, Process};

use crate::units::SECTOR;
use rustix::fs::{AtFlags, CWD, StatxFlags};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Layers of device mapper, md and loop that are followed down.
const STACK_MAX: usize = 16;

/// Where `/sys` and `/proc` are.
#[derive(Clone, Debug)]
pub struct Kernel {
    root: PathBuf,
}

/// A partition's place on its disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Partition {
    /// The whole disk.
    pub disk: DeviceNumber,
    /// Where on that disk it begins, in bytes.
    pub start: u64,
    /// Bytes in it.
    pub size: u64,
}

/// A loop device and what it shows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loop {
    /// Its number.
    pub number: DeviceNumber,
    /// `loop3`.
    pub name: String,
    /// The file or device behind it.
    pub backing: PathBuf,
    /// Where in that it begins, in bytes.
    pub offset: u64,
    /// Bytes that it shows; `None` if that is all there is.
    pub size: Option<u64>,
}

impl Kernel {
    /// The one that runs us.
    pub fn running() -> Kernel {
        Kernel {
            root: PathBuf::from("/"),
        }
    }

    /// One that a test laid out below `root`.
    #[cfg(test)]
    fn at(root: &Path) -> Kernel {
        Kernel { root: root.into() }
    }

    /// Whether `/proc` and `/sys` are there to be read. Elsewhere what cannot be read is not there, as of
    /// a process that has just ended; without them a disk in use would look like one that nobody uses.
    ///
    /// # Errors
    /// What cannot be read, with its name.
    pub fn check_visible(&self) -> io::Result<()> {
        let named = |path: &Path, error: &io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        };
        let mounts = self.path("proc/self/mountinfo");
        fs::read(&mounts).map_err(|error| named(&mounts, &error))?;
        let devices = self.path("sys/dev/block");
        fs::read_dir(&devices).map_err(|error| named(&devices, &error))?;
        Ok(())
    }

    fn path(&self, below: &str) -> PathBuf {
        self.root.join(below)
    }

    /// The folder of a device, with the links resolved: `.../block/sda/sda1`.
    fn device_folder(&self, number: DeviceNumber) -> Option<PathBuf> {
        fs::canonicalize(self.path(&format!("sys/dev/block/{number}"))).ok()
    }

    /// `sda1`.
    pub fn device_name(&self, number: DeviceNumber) -> Option<String> {
        Some(
            self.device_folder(number)?
                .file_name()?
                .to_string_lossy()
                .into_owned(),
        )
    }

    /// One file of the device's `queue` folder, which only whole disks have: a partition's limits are
    /// those of its disk.
    pub fn queue_text(&self, number: DeviceNumber, file: &str) -> Option<String> {
        text(&self.whole(number)?.join("queue").join(file))
    }

    /// Whether the block layer itself turns requests for durability into flushes for this device, or the
    /// disk that it is a partition of. Where it does not (device mapper, md, bcache), they go to the driver
    /// as they are, and reach one of the disks below.
    pub fn is_request_based(&self, number: DeviceNumber) -> bool {
        self.whole(number)
            .is_some_and(|folder| folder.join("mq").is_dir())
    }

    /// The disks that a part lies on in the end, below partitions, device mapper, md, loop devices and
    /// filesystems. What cannot be followed any further counts as a disk.
    pub fn disks_below(&self, identity: Identity) -> BTreeSet<DeviceNumber> {
        let mut disks = BTreeSet::new();
        self.collect_disks(identity, STACK_MAX, &mut disks);
        disks
    }

    fn collect_disks(&self, identity: Identity, depth: usize, disks: &mut BTreeSet<DeviceNumber>) {
        let (Identity::Device(number)
        | Identity::File {
            filesystem: number, ..
        }) = identity;
        let folder = self.whole(number);
        let below = folder.as_deref().map_or_else(Vec::new, below);
        match depth.checked_sub(1) {
            Some(depth) if !below.is_empty() => {
                for lower in below {
                    self.collect_disks(lower, depth, disks);
                }
            }
            Some(_) | None => {
                let whole = folder.and_then(|folder| text(&folder.join("dev"))?.parse().ok());
                disks.insert(whole.unwrap_or(number));
            }
        }
    }

    /// The folder of a disk, or of the disk that a partition is on.
    fn whole(&self, number: DeviceNumber) -> Option<PathBuf> {
        let mut folder = self.device_folder(number)?;
        if folder.join("partition").exists() {
            folder.pop();
        }
        Some(folder)
    }

    /// Where a partition lies; `None` for a whole disk.
    pub fn partition(&self, number: DeviceNumber) -> Option<Partition> {
        let folder = self.device_folder(number)?;
        if !folder.join("partition").exists() {
            return None;
        }
        let bytes = |file| unsigned(&folder.join(file))?.checked_mul(SECTOR);
        let disk = text(&folder.parent()?.join("dev"))?.parse().ok()?;
        Some(Partition {
            disk,
            start: bytes("start")?,
            size: bytes("size")?,
        })
    }

    /// The partitions of a disk, in the order of their numbers.
    pub fn partitions(&self, disk: DeviceNumber) -> Vec<DeviceNumber> {
        let Some(folder) = self.device_folder(disk) else {
            return Vec::new();
        };
        let inside = entries(&folder)
            .into_iter()
            .filter(|entry| entry.join("partition").exists());
        let mut partitions: Vec<DeviceNumber> = inside
            .filter_map(|entry| text(&entry.join("dev"))?.parse().ok())
            .collect();
        partitions.sort();
        partitions
    }

    /// Whether the device takes no writes: a switch on the medium, a snapshot, `blockdev --setro`. Opening it
    /// for writing succeeds all the same; only the first write would tell.
    pub fn is_read_only(&self, number: DeviceNumber) -> bool {
        let folder = self.device_folder(number);
        folder.and_then(|folder| unsigned(&folder.join("ro"))) == Some(1)
    }

    /// Devices that are built on this one: device mapper, md, bcache.
    pub fn holders(&self, number: DeviceNumber) -> Vec<String> {
        let Some(folder) = self.device_folder(number) else {
            return Vec::new();
        };
        let mut holders: Vec<String> = entries(&folder.join("holders"))
            .iter()
            .filter_map(|path| name_of(path))
            .collect();
        if folder.join("bcache").exists() {
            holders.push("bcache".into());
        }
        holders
    }

    /// The loop devices that show something.
    pub fn loops(&self) -> Vec<Loop> {
        let name_and_folder = |path: PathBuf| Some((name_of(&path)?, path));
        let one = |(name, folder): (String, PathBuf)| {
            let backing = bytes(&folder.join("loop/backing_file"))?;
            let offset = unsigned(&folder.join("loop/offset")).unwrap_or(0);
            let number = text(&folder.join("dev"))?.parse().ok()?;
            let size = unsigned(&folder.join("loop/sizelimit")).filter(|size| *size > 0);
            Some(Loop {
                number,
                name,
                backing: path_from(backing.trim_ascii_end()),
                offset,
                size,
            })
        };
        entries(&self.path("sys/block"))
            .into_iter()
            .filter_map(name_and_folder)
            .filter_map(one)
            .collect()
    }

    /// The loop devices that show this very file or device. They keep it open without claiming it.
    pub fn loops_over(&self, backing: Identity) -> Vec<Loop> {
        let mut loops = self.loops();
        loops.retain(|device| leads_to(&device.backing, backing));
        loops
    }

    /// Whether `upper` is `lower`, a partition of it, or built on them in whatever number of layers.
    pub fn stands_on(&self, upper: DeviceNumber, lower: DeviceNumber) -> bool {
        let folders = self.device_folder(upper).zip(self.device_folder(lower));
        upper == lower || folders.is_some_and(|(upper, lower)| is_above(&upper, &lower, STACK_MAX))
    }
}

/// Whether the device in folder `upper` is the one in `lower`, a partition of it, or on top of it.
fn is_above(upper: &Path, lower: &Path, depth: usize) -> bool {
    if upper.starts_with(lower) {
        return true;
    }
    let Some(depth) = depth.checked_sub(1) else {
        return false;
    };
    entries(&upper.join("slaves"))
        .iter()
        .filter_map(|slave| fs::canonicalize(slave).ok())
        .any(|slave| is_above(&slave, lower, depth))
}

/// What the disk in this folder is built on, directly.
fn below(folder: &Path) -> Vec<Identity> {
    let slaves = entries(&folder.join("slaves"));
    let slaves = slaves
        .iter()
        .filter_map(|slave| Some(Identity::Device(text(&slave.join("dev"))?.parse().ok()?)));
    let backing = bytes(&folder.join("loop/backing_file"))
        .and_then(|path| fs::metadata(path_from(path.trim_ascii_end())).ok())
        .and_then(|metadata| Identity::of(&metadata).ok());
    slaves.chain(backing).collect()
}

/// The block device that a path leads to.
pub fn device_at(path: &Path) -> Option<DeviceNumber> {
    match Identity::of(&fs::metadata(path).ok()?) {
        Ok(Identity::Device(number)) => Some(number),
        Ok(Identity::File { .. }) | Err(_) => None,
    }
}

/// Whether following `path` ends at `identity`. Does not ask a file server.
fn leads_to(path: &Path, identity: Identity) -> bool {
    let wanted = StatxFlags::TYPE | StatxFlags::INO;
    let Ok(found) = rustix::fs::statx(CWD, path, AtFlags::STATX_DONT_SYNC, wanted) else {
        return false;
    };
    match identity {
        Identity::Device(number) => {
            let is_block_device = u32::from(found.stx_mode) & libc::S_IFMT == libc::S_IFBLK;
            is_block_device
                && DeviceNumber {
                    major: found.stx_rdev_major,
                    minor: found.stx_rdev_minor,
                } == number
        }
        Identity::File { filesystem, inode } => {
            found.stx_ino == inode
                && DeviceNumber {
                    major: found.stx_dev_major,
                    minor: found.stx_dev_minor,
                } == filesystem
        }
    }
}

/// A path as `/proc` writes it: blank, tab, newline and backslash as `\` and three octal digits.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let octal = after
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(octal_byte);
        plain.push(octal.unwrap_or(*first));
        rest = if octal.is_some() { &after[3..] } else { after };
    }
    PathBuf::from(OsString::from_vec(plain))
}

fn octal_byte(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

fn path_from(bytes: &[u8]) -> PathBuf {
    PathBuf::from(std::ffi::OsStr::from_bytes(bytes))
}

fn bytes(path: &Path) -> Option<Vec<u8>> {
    fs::read(path).ok()
}

fn text(path: &Path) -> Option<String> {
    Some(String::from_utf8_lossy(&bytes(path)?).trim().to_owned())
}

fn unsigned(path: &Path) -> Option<u64> {
    text(path)?.parse().ok()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(list) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = list.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

fn name_of(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_string_lossy().into_owned())
}

#[cfg(test)]
pub(crate) mod layout {
    //! A machine laid out in a folder: disks, partitions and processes that this one does not have.

    use super::*;

    /// The folder and the kernel that is read from it.
    pub(crate) struct Machine {
        pub(super) folder: tempfile::TempDir,
    }

    impl Machine {
        /// With no disks and no processes.
        pub(crate) fn empty() -> Machine {
            Machine {
                folder: tempfile::tempdir().unwrap(),
            }
        }

        pub(crate) fn kernel(&self) -> Kernel {
            Kernel::at(self.folder.path())
        }

        /// Writes one file, with the folders that lead to it.
        pub(crate) fn file(&self, path: &str, content: impl AsRef<[u8]>) -> &Machine {
            let path = self.folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
            self
        }

        /// Makes a symbolic link, with the folders that lead to it.
        pub(crate) fn link(&self, path: &str, target: &Path) {
            let path = self.folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(target, path).unwrap();
        }

        /// A whole disk.
        pub(crate) fn disk(&self, name: &str, number: &str) -> &Machine {
            let home = format!("sys/devices/pci/block/{name}");
            self.file(&format!("{home}/dev"), format!("{number}\n"));
            fs::create_dir_all(self.folder.path().join(format!("{home}/holders"))).unwrap();
            self.link(
                &format!("sys/dev/block/{number}"),
                &self.folder.path().join(&home),
            );
            self.link(
                &format!("sys/block/{name}"),
                &self.folder.path().join(&home),
            );
            self
        }

        /// A partition of `disk`, which begins at a sector and has 2048 of them.
        pub(crate) fn partition(
            &self,
            disk: &str,
            name: &str,
            number: &str,
            start: u64,
        ) -> &Machine {
            let home = format!("sys/devices/pci/block/{disk}/{name}");
            self.file(&format!("{home}/dev"), format!("{number}\n"));
            self.file(&format!("{home}/partition"), "1\n");
            self.file(&format!("{home}/start"), format!("{start}\n"));
            self.file(&format!("{home}/size"), "2048\n");
            fs::create_dir_all(self.folder.path().join(format!("{home}/holders"))).unwrap();
            self.link(
                &format!("sys/dev/block/{number}"),
                &self.folder.path().join(&home),
            );
            self
        }

        /// A loop device over a file or device.
        pub(crate) fn loop_device(
            &self,
            name: &str,
            number: &str,
            backing: &Path,
            offset: u64,
        ) -> &Machine {
            let home = format!("sys/devices/pci/block/{name}");
            self.disk(name, number);
            self.file(
                &format!("{home}/loop/backing_file"),
                format!("{}\n", backing.display()),
            );
            self.file(&format!("{home}/loop/offset"), format!("{offset}\n"));
            self.file(&format!("{home}/loop/sizelimit"), "0\n")
        }

        /// A process with one file open.
        pub(crate) fn process(
            &self,
            pid: u32,
            command: &str,
            open: &Path,
            flags: &str,
        ) -> &Machine {
            self.file(&format!("proc/{pid}/cmdline"), command.replace(' ', "\0"));
            self.file(
                &format!("proc/{pid}/stat"),
                format!("{pid} (a) b) S 1 1 1 0 -1 4194304 0"),
            );
            self.file(
                &format!("proc/{pid}/status"),
                "SigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n",
            );
            self.file(
                &format!("proc/{pid}/fdinfo/3"),
                format!("pos:\t0\nflags:\t{flags}\nmnt_id:\t29\n"),
            );
            self.link(&format!("proc/{pid}/fd/3"), open);
            self
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: what the kernel writes is read rightly, and anything else is nothing. Method: machines laid
    //! out in a folder, and the real one where every machine has what is looked for.

    use super::layout::Machine;
    use super::*;

    fn number(text: &str) -> DeviceNumber {
        text.parse().unwrap()
    }

    #[test]
    fn a_partition_is_found_on_its_disk() {
        let machine = Machine::empty();
        machine
            .disk("sda", "8:0")
            .partition("sda", "sda1", "8:1", 2048)
            .partition("sda", "sda2", "8:2", 4096);
        let kernel = machine.kernel();
        assert_eq!(
            kernel.partition(number("8:2")),
            Some(Partition {
                disk: number("8:0"),
                start: 4096 * 512,
                size: 1 << 20
            })
        );
        assert_eq!(kernel.partition(number("8:0")), None);
        assert_eq!(
            kernel.partitions(number("8:0")),
            [number("8:1"), number("8:2")]
        );
        assert_eq!(kernel.device_name(number("8:2")).as_deref(), Some("sda2"));
    }

    #[test]
    fn a_device_is_read_only_when_the_kernel_says_so_and_at_no_other_time() {
        let machine = Machine::empty();
        for (name, device, ro) in [
            ("sda", "8:0", "1\n"),
            ("sdb", "8:16", "0\n"),
            ("sdc", "8:32", "?"),
        ] {
            machine.disk(name, device);
            machine.file(&format!("sys/devices/pci/block/{name}/ro"), ro);
        }
        machine.disk("sdd", "8:48");
        let kernel = machine.kernel();
        let found = ["8:0", "8:16", "8:32", "8:48", "9:9"]
            .map(|device| kernel.is_read_only(number(device)));
        assert_eq!(found, [true, false, false, false, false]);
    }

    #[test]
    fn a_partition_has_its_disks_queue() {
        let machine = Machine::empty();
        machine
            .disk("sda", "8:0")
            .partition("sda", "sda1", "8:1", 2048);
        machine.file("sys/devices/pci/block/sda/queue/max_sectors_kb", "1280\n");
        let kernel = machine.kernel();
        for device in ["8:0", "8:1"] {
            assert_eq!(
                kernel
                    .queue_text(number(device), "max_sectors_kb")
                    .as_deref(),
                Some("1280"),
                "{device}"
            );
        }
        assert_eq!(kernel.queue_text(number("8:0"), "fua"), None);
    }

    #[test]
    fn only_a_disk_with_queues_of_its_own_is_request_based() {
        let machine = Machine::empty();
        machine
            .disk("sda", "8:0")
            .partition("sda", "sda1", "8:1", 2048)
            .disk("dm-0", "253:0");
        machine.file("sys/devices/pci/block/sda/mq/0/nr_tags", "64\n");
        let kernel = machine.kernel();
        for (device, expected) in [
            ("8:0", true),
            ("8:1", true),
            ("253:0", false),
            ("7:0", false),
        ] {
            let found = kernel.is_request_based(number(device));
            assert_eq!(found, expected, "{device}");
        }
    }

    #[test]
    fn a_part_lies_on_the_disks_at_the_bottom() {
        let machine = Machine::empty();
        machine
            .disk("sda", "8:0")
            .partition("sda", "sda1", "8:1", 2048)
            .partition("sda", "sda2", "8:2", 4096)
            .disk("sdb", "8:16")
            .disk("dm-0", "253:0")
            .disk("dm-1", "253:1");
        let home = |name: &str| {
            machine
                .folder
                .path()
                .join("sys/devices/pci/block")
                .join(name)
        };
        machine.link("sys/devices/pci/block/dm-0/slaves/sda2", &home("sda/sda2"));
        machine.link("sys/devices/pci/block/dm-0/slaves/sdb", &home("sdb"));
        machine.link("sys/devices/pci/block/dm-1/slaves/dm-0", &home("dm-0"));
        // A file of this machine, whose filesystem the laid out one knows as dm-1's.
        let image = tempfile::NamedTempFile::new().unwrap();
        let Ok(Identity::File { filesystem, .. }) =
            Identity::of(&image.as_file().metadata().unwrap())
        else {
            panic!("a file")
        };
        machine.link(&format!("sys/dev/block/{filesystem}"), &home("dm-1"));
        machine.loop_device("loop0", "7:0", image.path(), 0);
        let kernel = machine.kernel();
        let below = |identity| kernel.disks_below(identity);
        let device = |text| Identity::Device(number(text));
        let (sda, sdb) = (number("8:0"), number("8:16"));
        assert_eq!(below(device("8:1")), [sda].into());
        assert_eq!(below(device("8:16")), [sdb].into());
        assert_eq!(below(device("253:1")), [sda, sdb].into());
        assert_eq!(below(device("7:0")), [sda, sdb].into());
        let file = Identity::File {
            filesystem,
            inode: 5,
        };
        assert_eq!(below(file), [sda, sdb].into());
        // What sysfs does not know, such as a filesystem in memory, is its own disk.
        assert_eq!(below(device("0:44")), [number("0:44")].into());
    }

    #[test]
    fn nonsense_in_sysfs_is_as_good_as_nothing() {
        let machine = Machine::empty();
        machine
            .disk("sda", "8:0")
            .partition("sda", "sda1", "8:1", 0);
        for start in [
            "",
            "x",
            "-1",
            "99999999999999999999999",
            &u64::MAX.to_string(),
        ] {
            machine.file("sys/devices/pci/block/sda/sda1/start", start);
            assert_eq!(machine.kernel().partition(number("8:1")), None, "{start}");
        }
        machine.file("sys/devices/pci/block/sda/sda1/dev", [0xff, 0xfe]);
        assert_eq!(machine.kernel().partitions(number("8:0")), []);
    }

    #[test]
    fn holders_are_named() {
        let machine = Machine::empty();
        machine
            .disk("sda", "8:0")
            .disk("sdb", "8:16")
            .disk("sdc", "8:32");
        machine
            .file("sys/devices/pci/block/sda/holders/dm-3", "")
            .file("sys/devices/pci/block/sdb/bcache/dirty_data", "");
        assert_eq!(machine.kernel().holders(number("8:0")), ["dm-3"]);
        assert_eq!(machine.kernel().holders(number("8:16")), ["bcache"]);
        assert_eq!(
            machine.kernel().holders(number("8:32")),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_loop_device_names_the_file_behind_it() {
        let machine = Machine::empty();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a file");
        fs::write(&file, b"x").unwrap();
        machine
            .disk("loop0", "7:0")
            .loop_device("loop1", "7:1", &file, 1 << 20);
        let expected = Loop {
            number: number("7:1"),
            name: "loop1".into(),
            backing: file.clone(),
            offset: 1 << 20,
            size: None,
        };
        assert_eq!(machine.kernel().loops(), std::slice::from_ref(&expected));
        let identity = Identity::of(&fs::metadata(&file).unwrap()).unwrap();
        assert_eq!(machine.kernel().loops_over(identity), [expected]);
        machine.file("sys/devices/pci/block/loop1/loop/sizelimit", "4096\n");
        assert_eq!(machine.kernel().loops()[0].size, Some(4096));
    }

    #[test]
    fn a_device_is_followed_down_through_partitions_and_layers() {
        let machine = Machine::empty();
        machine
            .disk("ublkb0", "259:0")
            .partition("ublkb0", "ublkb0p1", "259:1", 2048)
            .disk("ublkb01", "259:2")
            .disk("dm-0", "253:0")
            .disk("dm-1", "253:1");
        let below = |upper: &str, lower: &str, folder: &str| {
            let lower = machine.kernel().device_folder(number(lower)).unwrap();
            machine.link(
                &format!("sys/devices/pci/block/{upper}/slaves/{folder}"),
                &lower,
            );
        };
        below("dm-0", "259:1", "ublkb0p1");
        below("dm-1", "253:0", "dm-0");
        // A ring of layers, which the kernel never makes, ends all the same.
        below("ublkb01", "259:2", "self");
        let kernel = machine.kernel();
        for (upper, expected) in [
            ("259:0", true),
            ("259:1", true),
            ("253:0", true),
            ("253:1", true),
            ("259:2", false),
            ("8:0", false),
        ] {
            assert_eq!(
                kernel.stands_on(number(upper), number("259:0")),
                expected,
                "{upper}"
            );
        }
        assert!(kernel.stands_on(number("8:0"), number("8:0")), "itself");
    }
}
