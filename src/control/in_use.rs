//! Who uses a block device, and how to keep others from it while it is taken away.
//!
//! Opening it with `O_EXCL` says whether the kernel itself uses it (a mounted filesystem, md, dm,
//! swap), and while that descriptor is open nothing of the kind can begin. Programs that just have it
//! open do not show there: they are found in `/proc/*/fd`. Everything else here is for the sentence
//! that names them.

use crate::outcome::Failure;
use rustix::fs::OFlags;
use std::collections::BTreeSet;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// A program that looks at each new device (udev, blkid) has it open for a moment: ask again.
const TRIES: u32 = 10;
const TRY_PAUSE: Duration = Duration::from_millis(100);
/// More names than this do not make a sentence clearer.
const NAMED_MAX: usize = 4;

/// The device, opened for ourselves alone.
#[derive(Debug)]
pub struct DeviceHold(#[expect(dead_code, reason = "it is held, not used")] File);

impl DeviceHold {
    /// Over a file that the caller has opened with `O_EXCL`.
    pub fn of(file: File) -> DeviceHold {
        DeviceHold(file)
    }
}

/// Whether the device could be had.
#[derive(Debug)]
pub enum Claim {
    /// Nobody uses it, and nobody can begin to as long as this is held.
    Free(DeviceHold),
    /// Who uses it, as the rest of a sentence: `mounted on /mnt; open by dd (pid 12)`.
    Used(String),
}

/// Takes the device if nobody uses it. Waits up to a second for programs that only look. Blocks.
pub fn claim(device: &Path) -> io::Result<Claim> {
    let number = block_device_number(device)?;
    let mut users = String::new();
    for attempt in 0..TRIES {
        if attempt > 0 {
            thread::sleep(TRY_PAUSE);
        }
        let hold = match open_exclusively(device) {
            Ok(file) => Some(file),
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) => {
                None
            }
            Err(error) => return Err(error),
        };
        let found = Users::of(number);
        match hold {
            Some(file) if found.processes.is_empty() && found.loops.is_empty() => {
                return Ok(Claim::Free(DeviceHold::of(file)));
            }
            Some(_) | None => users = found.sentence(),
        }
        if !found.mounts.is_empty() {
            break;
        }
    }
    Ok(Claim::Used(users))
}

/// The same, off the control thread: opening the device may need answers from the I/O thread.
pub async fn claim_elsewhere(device: PathBuf) -> Result<Claim, Failure> {
    let shown = device.display().to_string();
    match tokio::task::spawn_blocking(move || claim(&device)).await {
        Ok(Ok(claim)) => Ok(claim),
        Ok(Err(error)) => Err(Failure::failed(format!(
            "{shown}: cannot tell whether it is in use: {error}"
        ))),
        Err(error) => panic!("the look at {shown} did not end by itself: {error}"),
    }
}

fn block_device_number(device: &Path) -> io::Result<u64> {
    let metadata = fs::metadata(device)?;
    if metadata.file_type().is_block_device() {
        Ok(metadata.rdev())
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "expected a block device",
        ))
    }
}

fn open_exclusively(device: &Path) -> io::Result<File> {
    let flags = (OFlags::EXCL | OFlags::CLOEXEC).bits();
    let flags = i32::try_from(flags).expect("open flags are small");
    OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(device)
}

/// Everybody who uses a device or one of its partitions.
#[derive(Default, Debug)]
struct Users {
    mounts: BTreeSet<PathBuf>,
    swaps: Vec<String>,
    holders: Vec<String>,
    loops: Vec<String>,
    processes: Vec<(i32, String)>,
}

impl Users {
    fn of(rdev: u64) -> Users {
        let system = Path::new("/sys/dev/block").join(dev_text(rdev));
        let devices = with_partitions(rdev, &system);
        let is_ours = |found: &Metadata| {
            found.file_type().is_block_device() && devices.contains(&found.rdev())
        };
        let names_ours = |path: &Path| fs::metadata(path).is_ok_and(|found| is_ours(&found));
        Users {
            mounts: mounts(&devices, &names_ours),
            swaps: swaps(&names_ours),
            holders: holders(&system),
            loops: loops(&names_ours),
            processes: processes(&is_ours),
        }
    }

    fn sentence(&self) -> String {
        let mut uses = Vec::new();
        let mounts: Vec<String> = self
            .mounts
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        let processes: Vec<String> = self
            .processes
            .iter()
            .map(|(pid, name)| format!("{name} (pid {pid})"))
            .collect();
        for (how, names) in [
            ("mounted on", &mounts),
            ("used as", &self.swaps),
            ("used by", &self.holders),
            ("used by", &self.loops),
            ("open by", &processes),
        ] {
            if !names.is_empty() {
                uses.push(format!("{how} {}", some_of(names)));
            }
        }
        if uses.is_empty() {
            "used by the kernel or by another container".to_owned()
        } else {
            uses.join("; ")
        }
    }
}

fn some_of(names: &[String]) -> String {
    let named = names
        .iter()
        .take(NAMED_MAX)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    match names.len().saturating_sub(NAMED_MAX) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

fn dev_text(rdev: u64) -> String {
    format!("{}:{}", rustix::fs::major(rdev), rustix::fs::minor(rdev))
}

/// The device and its partitions, by number.
fn with_partitions(rdev: u64, system: &Path) -> BTreeSet<u64> {
    let mut devices = BTreeSet::from([rdev]);
    for entry in entries(system) {
        if entry.join("partition").exists() {
            devices.extend(
                fs::read_to_string(entry.join("dev"))
                    .ok()
                    .and_then(|text| parse_dev(&text)),
            );
        }
    }
    devices
}

fn parse_dev(text: &str) -> Option<u64> {
    let (major, minor) = text.trim().split_once(':')?;
    Some(rustix::fs::makedev(
        major.parse().ok()?,
        minor.parse().ok()?,
    ))
}

/// What is in a folder; nothing if it cannot be read: a process that ended, a device that went.
fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect()
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .map_or(String::new(), |name| name.to_string_lossy().into_owned())
}

/// Programs that have open what `wanted` says, ourselves aside.
fn processes(wanted: &dyn Fn(&Metadata) -> bool) -> Vec<(i32, String)> {
    let own = i32::try_from(std::process::id()).expect("a pid is positive and small");
    let mut found = Vec::new();
    for process in entries(Path::new("/proc")) {
        let Ok(pid) = file_name(&process).parse::<i32>() else {
            continue;
        };
        if pid == own {
            continue;
        }
        let has_it = entries(&process.join("fd")).iter().any(|fd| {
            // Only what has the name of a file is looked up: the state of a socket or of a file on
            // a server that is gone might never come.
            fs::read_link(fd).is_ok_and(|name| could_be_device(&name))
                && fs::metadata(fd).is_ok_and(|metadata| wanted(&metadata))
        });
        if has_it {
            let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
            found.push((pid, name.trim_end().to_owned()));
        }
    }
    found.sort();
    found
}

/// Device nodes lie under /dev; one made elsewhere by hand keeps its usual name.
fn could_be_device(name: &Path) -> bool {
    name.starts_with("/dev") || file_name(name).starts_with("ublkb")
}

/// Where filesystems on `devices` are mounted, in whichever mount namespace.
fn mounts(devices: &BTreeSet<u64>, names_ours: &dyn Fn(&Path) -> bool) -> BTreeSet<PathBuf> {
    let mut namespaces = BTreeSet::new();
    let mut found = BTreeSet::new();
    for process in entries(Path::new("/proc")) {
        let Ok(namespace) = fs::read_link(process.join("ns/mnt")) else {
            continue;
        };
        if file_name(&process).parse::<i32>().is_ok() && namespaces.insert(namespace) {
            let text = fs::read(process.join("mountinfo")).unwrap_or_default();
            let ours = |mount: &Mount| {
                // btrfs and others have a number of their own: there the name of the source tells.
                devices.contains(&mount.device)
                    || (mount.source.starts_with("/dev") && names_ours(&mount.source))
            };
            found.extend(
                parse_mountinfo(&text)
                    .into_iter()
                    .filter(ours)
                    .map(|mount| mount.point),
            );
        }
    }
    found
}

/// One line of mountinfo.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Mount {
    pub(crate) device: u64,
    pub(crate) point: PathBuf,
    pub(crate) source: PathBuf,
}

/// `36 35 98:0 /root /mnt opts shared:1 - ext4 /dev/sdb opts`, the number of optional fields before
/// `-` being free. Lines that look otherwise are passed over.
pub(crate) fn parse_mountinfo(text: &[u8]) -> Vec<Mount> {
    let parse = |line: &[u8]| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let dash = fields.iter().position(|field| *field == b"-")?;
        Some(Mount {
            device: parse_dev(std::str::from_utf8(fields.get(2)?).ok()?)?,
            point: unescaped(fields.get(4)?),
            source: unescaped(fields.get(dash + 2)?),
        })
    };
    text.split(|byte| *byte == b'\n')
        .filter_map(parse)
        .collect()
}

/// The kernel writes blanks and backslashes in paths as `\040`.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let octal = (*first == b'\\')
            .then(|| after.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(std::ffi::OsStr::from_bytes(&bytes))
}

fn swaps(names_ours: &dyn Fn(&Path) -> bool) -> Vec<String> {
    let text = fs::read("/proc/swaps").unwrap_or_default();
    text.split(|byte| *byte == b'\n')
        .skip(1)
        .filter_map(|line| line.split(|byte| *byte == b' ' || *byte == b'\t').next())
        .filter(|field| field.starts_with(b"/"))
        .any(|field| names_ours(&unescaped(field)))
        .then(|| "swap".to_owned())
        .into_iter()
        .collect()
}

/// Devices that the kernel has put on top: md, dm.
fn holders(system: &Path) -> Vec<String> {
    let mut places = vec![system.to_owned()];
    places.extend(
        entries(system)
            .into_iter()
            .filter(|entry| entry.join("partition").exists()),
    );
    let mut names: Vec<String> = places
        .iter()
        .flat_map(|place| entries(&place.join("holders")))
        .map(|holder| file_name(&holder))
        .collect();
    names.sort();
    names
}

/// Loop devices keep what is under them open without claiming it.
fn loops(names_ours: &dyn Fn(&Path) -> bool) -> Vec<String> {
    let mut names: Vec<String> = entries(Path::new("/sys/block"))
        .iter()
        .filter(|block| {
            fs::read(block.join("loop/backing_file")).is_ok_and(|text| {
                names_ours(Path::new(std::ffi::OsStr::from_bytes(
                    text.trim_ascii_end(),
                )))
            })
        })
        .map(|block| file_name(block))
        .collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn mountinfo_is_read_whatever_stands_in_it() {
        let text =
            b"36 35 98:0 / /mnt/with\\040blank rw,noatime shared:1 master:2 - ext4 /dev/sdb rw\n\
                     37 35 0:45 /sub /back\\134slash rw - btrfs /dev/ublkb0 rw\n\
                     nonsense\n38 35 x:y / / rw - ext4 /dev/sdc rw\n39 35 1:2 / / rw -\n\
                     40 35 1:3 / /odd\\9 rw - tmpfs none rw";
        let mounts = parse_mountinfo(text);
        let points: Vec<&str> = mounts
            .iter()
            .map(|mount| mount.point.to_str().expect("text"))
            .collect();
        assert_eq!(points, ["/mnt/with blank", "/back\\slash", "/odd\\9"]);
        assert_eq!(mounts[0].device, rustix::fs::makedev(98, 0));
        assert_eq!(mounts[1].source, Path::new("/dev/ublkb0"));
        proptest::proptest!(|(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300))| {
            parse_mountinfo(&bytes);
        });
    }

    #[test]
    fn the_sentence_names_who_uses_it() {
        let mut users = Users::default();
        assert_eq!(
            users.sentence(),
            "used by the kernel or by another container"
        );
        users.mounts.insert("/mnt".into());
        users.holders.push("dm-3".to_owned());
        users.processes = (1..=6).map(|pid| (pid, "dd".to_owned())).collect();
        assert_eq!(
            users.sentence(),
            "mounted on /mnt; used by dm-3; open by dd (pid 1), dd (pid 2), dd (pid 3), dd (pid 4) and 2 more"
        );
    }

    #[test]
    fn a_process_that_has_it_open_is_found_and_named() {
        // Any file will do in place of a device, as long as it lies where devices lie.
        let file = tempfile::NamedTempFile::new_in("/dev/shm").expect("a file");
        let inode = file.as_file().metadata().expect("metadata").ino();
        let wanted = |found: &Metadata| found.is_file() && found.ino() == inode;
        assert_eq!(processes(&wanted), [], "our own does not count");

        let input = File::open(file.path()).expect("opened");
        let mut child = Command::new("sleep")
            .arg("60")
            .stdin(Stdio::from(input))
            .spawn()
            .expect("sleep");
        let pid = i32::try_from(child.id()).expect("a pid");
        let found = processes(&wanted);
        child.kill().expect("killed");
        child.wait().expect("reaped");
        assert_eq!(found, [(pid, "sleep".to_owned())]);
    }

    #[test]
    fn what_is_no_device_cannot_be_claimed() {
        let kind = |path: &str| claim(Path::new(path)).expect_err("refused").kind();
        assert_eq!(kind("/dev/no-such"), io::ErrorKind::NotFound);
        assert_eq!(kind("/dev/null"), io::ErrorKind::InvalidInput);
    }
}
