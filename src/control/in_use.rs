//! Who uses a block device, and how to keep others from it while it is taken away.
//!
//! Opening it with `O_EXCL` says whether the kernel itself uses it (a mounted filesystem, md, dm,
//! swap), and while that descriptor is open nothing of the kind can begin. Programs that just have it
//! open do not show there: the kernel tells of them elsewhere ([`crate::kernel`]), as it tells what else
//! the sentence says that names the users.

use crate::kernel::{DeviceNumber, Identity, Kernel};
use crate::outcome::Failure;
use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
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
    let kernel = Kernel::running();
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
        let found = Users::of(&kernel, number);
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

/// Who uses the device, as the rest of a sentence, if anybody does. It is not opened: that could wait for
/// a daemon that is not there.
pub fn users(device: &Path) -> Option<String> {
    let number = block_device_number(device).ok()?;
    let users = Users::of(&Kernel::running(), number);
    (!users.uses().is_empty()).then(|| users.sentence())
}

fn block_device_number(device: &Path) -> io::Result<DeviceNumber> {
    match Identity::of(&fs::metadata(device)?) {
        Ok(Identity::Device(number)) => Ok(number),
        Ok(Identity::File { .. }) | Err(_) => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "expected a block device",
        )),
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
    mounts: Vec<PathBuf>,
    swaps: Vec<String>,
    holders: Vec<String>,
    loops: Vec<String>,
    /// Others than we, by number and name.
    processes: Vec<(u32, String)>,
}

impl Users {
    fn of(kernel: &Kernel, number: DeviceNumber) -> Users {
        let mut devices = vec![number];
        devices.extend(kernel.partitions(number));
        let places: Vec<Identity> = devices.iter().copied().map(Identity::Device).collect();
        let is_swap = places.iter().any(|place| kernel.is_swap(*place));
        let loops = places.iter().flat_map(|place| kernel.loops_over(*place));
        Users {
            mounts: kernel.mount_points(&devices),
            swaps: is_swap.then(|| "swap".to_owned()).into_iter().collect(),
            holders: devices
                .iter()
                .flat_map(|device| kernel.holders(*device))
                .collect(),
            loops: loops.map(|device| device.name).collect(),
            processes: processes(kernel, &places),
        }
    }

    fn sentence(&self) -> String {
        let uses = self.uses();
        if uses.is_empty() {
            "used by the kernel or by another container".to_owned()
        } else {
            uses.join("; ")
        }
    }

    fn uses(&self) -> Vec<String> {
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
        uses
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

fn processes(kernel: &Kernel, places: &[Identity]) -> Vec<(u32, String)> {
    kernel
        .openers(places)
        .into_iter()
        .map(|(process, _)| (process.pid, kernel.process_name(process.pid)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn the_sentence_names_who_uses_it() {
        let mut users = Users::default();
        assert_eq!(
            users.sentence(),
            "used by the kernel or by another container"
        );
        users.mounts.push("/mnt".into());
        users.holders.push("dm-3".to_owned());
        users.processes = (1..=6).map(|pid| (pid, "dd".to_owned())).collect();
        assert_eq!(
            users.sentence(),
            "mounted on /mnt; used by dm-3; open by dd (pid 1), dd (pid 2), dd (pid 3), dd (pid 4) and 2 more"
        );
    }

    #[test]
    fn a_process_that_has_it_open_is_found_and_named() {
        // Any file will do in place of a device.
        let file = tempfile::NamedTempFile::new().expect("a file");
        let place = Identity::of(&file.as_file().metadata().expect("metadata")).expect("a file");
        let found = || processes(&Kernel::running(), &[place]);
        assert_eq!(found(), [], "our own does not count");

        let input = File::open(file.path()).expect("opened");
        let mut child = Command::new("sleep")
            .arg("60")
            .stdin(Stdio::from(input))
            .spawn()
            .expect("sleep");
        let found = found();
        child.kill().expect("killed");
        child.wait().expect("reaped");
        assert_eq!(found, [(child.id(), "sleep".to_owned())]);
    }

    #[test]
    fn what_is_no_device_cannot_be_claimed() {
        let kind = |path: &str| claim(Path::new(path)).expect_err("refused").kind();
        assert_eq!(kind("/dev/no-such"), io::ErrorKind::NotFound);
        assert_eq!(kind("/dev/null"), io::ErrorKind::InvalidInput);
    }
}
