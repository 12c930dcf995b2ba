//! What the kernel says about disks and their users: `/sys` and `/proc`, read tolerantly.
//!
//! Every file here is text that differs between kernels, may be missing, and may change while it is
//! read. So nothing fails: what is absent or unreadable is `None` or an empty list, and the callers
//! treat that as "nobody says so" and stay on the careful side.
//!
//! All paths hang below one root, `/` in real life, so that a test can lay out a machine with disks,
//! partitions and users that this one does not have.

use super::identity::{DeviceNumber, Identity};
use crate::units::SECTOR;
use rustix::fs::{AtFlags, CWD, StatxFlags};
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

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

/// A process, for messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its command line, or as much as is known of it.
    pub command: String,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, self.command)
    }
}

/// What a process may do with what it has open.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Opening {
    /// Read only: such as the programs that watch disks.
    ForReading,
    /// Write.
    ForWriting,
}

/// Whether a process can still act.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// It runs, or waits.
    Alive,
    /// It has ended, or is killed and only waits for its I/O.
    Dead,
}

/// Bits of `/proc/PID/stat` field 9: the process is on its way out.
const PF_EXITING: u64 = 0x4;

/// The bit of SIGKILL in the sets of `/proc/PID/status`.
const SIGKILL_PENDING: u64 = 1 << 8;

/// Characters of a command line that a message shows.
const COMMAND_SHOWN: usize = 80;

impl Kernel {
    /// The one that runs us.
    pub fn running() -> Kernel {
        Kernel {
            root: PathBuf::from("/"),
        }
    }

    /// One that a test laid out below `root`.
    #[cfg(test)]
    pub(super) fn at(root: &Path) -> Kernel {
        Kernel { root: root.into() }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.root.join(below)
    }

    // Disks.

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
        let mut folder = self.device_folder(number)?;
        if folder.join("partition").exists() {
            folder.pop();
        }
        text(&folder.join("queue").join(file))
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

    /// A loop device that shows this very file or device.
    pub fn loop_over(&self, backing: Identity) -> Option<Loop> {
        self.loops()
            .into_iter()
            .find(|device| leads_to(&device.backing, backing))
    }

    // Users.

    /// Where a device is mounted, in our view of the mounts or in that of the first process.
    pub fn mount_point(&self, number: DeviceNumber) -> Option<PathBuf> {
        let name = self.device_name(number);
        let lists = ["proc/self/mountinfo", "proc/1/mountinfo"];
        let of_list = |list: &str| {
            let content = bytes(&self.path(list))?;
            content
                .split(|byte| *byte == b'\n')
                .find_map(|line| mounted_from(line, number, name.as_deref()))
        };
        lists
            .into_iter()
            .find_map(of_list)
            .or_else(|| self.btrfs_with(name.as_deref()?))
    }

    /// A mounted btrfs that has the device among its own; `mountinfo` names only one of them.
    fn btrfs_with(&self, device: &str) -> Option<PathBuf> {
        let filesystems = entries(&self.path("sys/fs/btrfs"));
        let found = filesystems
            .into_iter()
            .find(|filesystem| filesystem.join("devices").join(device).exists())?;
        Some(PathBuf::from(format!("(btrfs {})", name_of(&found)?)))
    }

    /// Whether it is swap, as a device or as a file.
    pub fn is_swap(&self, identity: Identity) -> bool {
        let content = bytes(&self.path("proc/swaps")).unwrap_or_default();
        let lines = content.split(|byte| *byte == b'\n').skip(1);
        lines
            .filter_map(|line| line.split(u8::is_ascii_whitespace).next())
            .any(|path| leads_to(&unescaped(path), identity))
    }

    /// The processes that hold or wait in `/proc/locks` with `flock` on a file. A holder's number
    /// stays there after its death, for as long as the open file lives.
    pub fn flock_holders(&self, identity: Identity) -> Vec<u32> {
        let Identity::File { filesystem, inode } = identity else {
            return Vec::new();
        };
        let place = format!("{:02x}:{:02x}:{inode}", filesystem.major, filesystem.minor);
        let content = text(&self.path("proc/locks")).unwrap_or_default();
        content
            .lines()
            .filter_map(|line| flock_of(line, &place))
            .collect()
    }

    /// Every process that has one of `identities` open, but for this one; the ones that write first.
    ///
    /// The processes of other users are not seen unless we are root.
    pub fn openers(&self, identities: &[Identity]) -> Vec<(Process, Opening)> {
        let mut found: Vec<(u32, Opening)> = Vec::new();
        for pid in self.processes() {
            if let Some(opening) = self.opening(pid, identities) {
                found.push((pid, opening));
            }
        }
        found.sort_by_key(|(pid, opening)| (std::cmp::Reverse(*opening), *pid));
        found
            .into_iter()
            .map(|(pid, opening)| (self.process(pid), opening))
            .collect()
    }

    fn processes(&self) -> Vec<u32> {
        let this = std::process::id();
        let pids = entries(&self.path("proc"))
            .into_iter()
            .filter_map(|path| name_of(&path)?.parse().ok());
        pids.filter(|pid| *pid != this).collect()
    }

    /// How a process has one of `identities` open, if at all: for writing, if any of its openings is.
    pub(super) fn opening(&self, pid: u32, identities: &[Identity]) -> Option<Opening> {
        let descriptors = entries(&self.path(&format!("proc/{pid}/fd")));
        let matching = descriptors
            .iter()
            .filter(|link| identities.iter().any(|identity| leads_to(link, *identity)));
        matching
            .filter_map(|link| self.opening_of(pid, &name_of(link)?))
            .max()
    }

    fn opening_of(&self, pid: u32, descriptor: &str) -> Option<Opening> {
        let info = text(&self.path(&format!("proc/{pid}/fdinfo/{descriptor}")))?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
        // The access mode is the last octal digit's lower two bits: 0 reads, 1 and 2 write.
        let reads_only = flags.trim_end().ends_with(['0', '4']);
        Some(if reads_only {
            Opening::ForReading
        } else {
            Opening::ForWriting
        })
    }

    /// What to call a process.
    pub fn process(&self, pid: u32) -> Process {
        let line = bytes(&self.path(&format!("proc/{pid}/cmdline"))).unwrap_or_default();
        let words = String::from_utf8_lossy(&line).replace(|c: char| c.is_control(), " ");
        let name =
            || text(&self.path(&format!("proc/{pid}/comm"))).unwrap_or_else(|| "unknown".into());
        let command = if words.trim().is_empty() {
            name()
        } else {
            words.trim().into()
        };
        Process {
            pid,
            command: command.chars().take(COMMAND_SHOWN).collect(),
        }
    }

    /// Whether a process can still do anything. One that was killed but whose I/O is in flight cannot:
    /// it waits in the kernel, as a zombie or exiting, with the signal pending.
    pub fn life(&self, pid: u32) -> Life {
        let Some(stat) = text(&self.path(&format!("proc/{pid}/stat"))) else {
            return Life::Dead;
        };
        // The name, field 2, is in parentheses and may hold anything, even parentheses.
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
        let state = fields.first().copied().unwrap_or_default();
        let flags: u64 = fields
            .get(6)
            .and_then(|text| text.parse().ok())
            .unwrap_or(0);
        if matches!(state, "Z" | "X") || flags & PF_EXITING != 0 || self.is_killed(pid) {
            return Life::Dead;
        }
        Life::Alive
    }

    fn is_killed(&self, pid: u32) -> bool {
        let status = text(&self.path(&format!("proc/{pid}/status"))).unwrap_or_default();
        let sets = status.lines().filter_map(|line| {
            line.strip_prefix("SigPnd:")
                .or_else(|| line.strip_prefix("ShdPnd:"))
        });
        sets.filter_map(|set| u64::from_str_radix(set.trim(), 16).ok())
            .any(|set| set & SIGKILL_PENDING != 0)
    }

    /// Whether a process has `identity` open. Unlike [`Kernel::openers`], a process whose descriptors
    /// may not be read counts as having it.
    pub fn may_have_open(&self, pid: u32, identity: Identity) -> bool {
        match fs::read_dir(self.path(&format!("proc/{pid}/fd"))) {
            Ok(_) => self.opening(pid, &[identity]).is_some(),
            Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
        }
    }
}

/// The mount point in a line of `mountinfo`, if the line is about this device.
///
/// `36 35 8:1 / /mnt rw - ext4 /dev/sda1 rw`. The number is that of the filesystem, which btrfs makes
/// up, so the source counts too: by what it leads to, or by its name.
fn mounted_from(line: &[u8], number: DeviceNumber, name: Option<&str>) -> Option<PathBuf> {
    let fields: Vec<&[u8]> = line.split(u8::is_ascii_whitespace).collect();
    let point = unescaped(fields.get(4)?);
    let listed = std::str::from_utf8(fields.get(2)?).ok()?.parse() == Ok(number);
    let dash = fields.iter().position(|field| *field == b"-")?;
    let source = unescaped(fields.get(dash + 2)?);
    let named = name.is_some_and(|name| source == Path::new("/dev").join(name));
    (listed || named || leads_to(&source, Identity::Device(number))).then_some(point)
}

/// The owner in a line of `/proc/locks`, if it is an `flock` at `place`. A line with `->` is only
/// waiting.
///
/// `1: FLOCK  ADVISORY  WRITE 12379 fe:00:10117132 0 EOF`
fn flock_of(line: &str, place: &str) -> Option<u32> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let is_it = fields.get(1) == Some(&"FLOCK") && fields.get(5) == Some(&place);
    if !is_it {
        return None;
    }
    fields.get(4)?.parse().ok()
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
pub(super) mod layout {
    //! A machine laid out in a folder: disks, partitions and processes that this one does not have.

    use super::*;

    /// The folder and the kernel that is read from it.
    pub(in crate::disk) struct Machine {
        folder: tempfile::TempDir,
    }

    impl Machine {
        /// With no disks and no processes.
        pub(in crate::disk) fn empty() -> Machine {
            Machine {
                folder: tempfile::tempdir().unwrap(),
            }
        }

        pub(in crate::disk) fn kernel(&self) -> Kernel {
            Kernel::at(self.folder.path())
        }

        /// Writes one file, with the folders that lead to it.
        pub(in crate::disk) fn file(&self, path: &str, content: impl AsRef<[u8]>) -> &Machine {
            let path = self.folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
            self
        }

        fn link(&self, path: &str, target: &Path) {
            let path = self.folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(target, path).unwrap();
        }

        /// A whole disk.
        pub(in crate::disk) fn disk(&self, name: &str, number: &str) -> &Machine {
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
        pub(in crate::disk) fn partition(
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
        pub(in crate::disk) fn loop_device(
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
        pub(in crate::disk) fn process(
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
    fn a_mount_is_found_by_number_and_by_name() {
        let machine = Machine::empty();
        machine
            .disk("sdb", "8:16")
            .disk("sdc", "8:32")
            .disk("sdd", "8:48");
        machine.file(
            "proc/self/mountinfo",
            "garbage\n\
             22 1 8:16 / /mnt/a\\040b rw,noatime shared:1 master:2 - ext4 /dev/sdb rw\n\
             23 1 0:45 /sub /mnt/c rw - btrfs /dev/sdc rw\n",
        );
        let kernel = machine.kernel();
        assert_eq!(
            kernel.mount_point(number("8:16")),
            Some(PathBuf::from("/mnt/a b"))
        );
        assert_eq!(
            kernel.mount_point(number("8:32")),
            Some(PathBuf::from("/mnt/c"))
        );
        assert_eq!(kernel.mount_point(number("8:48")), None);
    }

    #[test]
    fn the_second_disk_of_a_mounted_btrfs_is_found() {
        let machine = Machine::empty();
        machine
            .disk("sdd", "8:48")
            .file("sys/fs/btrfs/1234-abcd/devices/sdd/dev", "8:48\n");
        assert_eq!(
            machine.kernel().mount_point(number("8:48")),
            Some(PathBuf::from("(btrfs 1234-abcd)"))
        );
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
        assert_eq!(machine.kernel().loop_over(identity), Some(expected));
        machine.file("sys/devices/pci/block/loop1/loop/sizelimit", "4096\n");
        assert_eq!(machine.kernel().loops()[0].size, Some(4096));
    }

    #[test]
    fn swap_is_recognised_by_what_its_path_leads_to() {
        let machine = Machine::empty();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("swap file");
        fs::write(&file, b"x").unwrap();
        let identity = Identity::of(&fs::metadata(&file).unwrap()).unwrap();
        assert!(!machine.kernel().is_swap(identity), "no list");
        let escaped = file.display().to_string().replace(' ', "\\040");
        machine.file(
            "proc/swaps",
            format!("Filename\tType\tSize\tUsed\tPriority\n{escaped}  file\t1024\t0\t-2\n"),
        );
        assert!(machine.kernel().is_swap(identity));
    }

    #[test]
    fn only_the_holder_of_an_flock_is_named_and_no_waiter() {
        let machine = Machine::empty();
        machine.file(
            "proc/locks",
            "1: FLOCK  ADVISORY  WRITE 70 fe:00:10117132 0 EOF\n\
             1: -> FLOCK  ADVISORY  WRITE 71 fe:00:10117132 0 EOF\n\
             2: POSIX  ADVISORY  WRITE 72 fe:00:10117132 0 EOF\n\
             3: FLOCK  ADVISORY  WRITE 73 08:01:10117132 0 EOF\n\
             4: FLOCK\n",
        );
        let identity = Identity::File {
            filesystem: DeviceNumber {
                major: 254,
                minor: 0,
            },
            inode: 10_117_132,
        };
        assert_eq!(machine.kernel().flock_holders(identity), [70]);
    }

    #[test]
    fn a_process_is_found_by_what_it_has_open_and_writers_come_first() {
        let machine = Machine::empty();
        let file = tempfile::NamedTempFile::new().unwrap();
        let other = tempfile::NamedTempFile::new().unwrap();
        machine
            .process(5, "watcher -d", file.path(), "0100000")
            .process(7, "ujournal start vol0", file.path(), "02140002");
        machine.process(6, "stranger", other.path(), "0100002");
        let identity = Identity::of(&file.as_file().metadata().unwrap()).unwrap();
        let expected = [
            (
                Process {
                    pid: 7,
                    command: "ujournal start vol0".into(),
                },
                Opening::ForWriting,
            ),
            (
                Process {
                    pid: 5,
                    command: "watcher -d".into(),
                },
                Opening::ForReading,
            ),
        ];
        assert_eq!(machine.kernel().openers(&[identity]), expected);
        assert!(machine.kernel().may_have_open(7, identity));
        assert!(!machine.kernel().may_have_open(6, identity));
        assert!(!machine.kernel().may_have_open(99, identity));
    }

    #[test]
    fn a_killed_process_is_dead_while_its_io_keeps_it_in_the_kernel() {
        let machine = Machine::empty();
        let check = |stat: &str, pending: &str, expected: Life| {
            machine
                .file("proc/5/stat", stat)
                .file("proc/5/status", format!("Name:\tx\nShdPnd:\t{pending}\n"));
            assert_eq!(machine.kernel().life(5), expected, "{stat} {pending}");
        };
        check(
            "5 (a) b) S 1 1 1 0 -1 4194304 0",
            "0000000000000000",
            Life::Alive,
        );
        check(
            "5 (a) b) D 1 1 1 0 -1 4194304 0",
            "0000000000000100",
            Life::Dead,
        );
        check(
            "5 (a) b) D 1 1 1 0 -1 4194308 0",
            "0000000000000000",
            Life::Dead,
        );
        check(
            "5 (a) b) Z 1 1 1 0 -1 4194304 0",
            "0000000000000000",
            Life::Dead,
        );
        check("nonsense", "nonsense", Life::Alive);
        assert_eq!(machine.kernel().life(6), Life::Dead);
    }

    #[test]
    fn this_process_is_alive_and_a_reaped_child_is_dead() {
        let kernel = Kernel::running();
        assert_eq!(kernel.life(std::process::id()), Life::Alive);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        assert_eq!(kernel.life(pid), Life::Dead);
    }
}
