//! The fence: one user of a part at a time, and no byte read before.
//!
//! A block device is opened with `O_EXCL`, a file is locked with `flock`. Both belong to the *open file*
//! and not to the process, and I/O that is in flight keeps its open file alive. So a lock that was got
//! says two things: nobody else uses the part, and no write of a daemon that died can still arrive.
//! (POSIX locks of `fcntl` end with the process, while its writes go on: never those.)
//!
//! A lock that is not got is explained, in this order:
//!
//! ```text
//!   mounted, swap, a device on top     refuse at once: that is somebody's data
//!   this process itself                refuse at once: the same thing was given twice
//!   a living process that can write    refuse at once, and name it
//!   nobody, or only the dead           wait, as long as the caller has patience: it is I/O in flight
//! ```
//!
//! A process that only reads a block device (udev, smartd) holds no lock on it, though the kernel does
//! not say who does; it neither ends the wait nor is believed in until the patience is used up.
//!
//! One process cannot lock one thing twice, nor a disk and its partition: whoever wants two extents of
//! one disk opens it once.

use super::error::PartError;
use super::identity::{DeviceNumber, Identity, Located, cannot_open};
use super::part::Access;
use crate::kernel::{Kernel, Life, Opening, Process};
use rustix::fs::FlockOperation;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long to go on when the lock is held by nobody who lives: the I/O of a dead daemon ends with the
/// disk's own timeouts, mostly 30 s.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Between two tries.
const RETRY: Duration = Duration::from_millis(50);

/// A living user is believed in when it is seen this often in a row: a child that is just being started
/// has every descriptor of its parent until it executes its program, and holds no lock for long.
const LOOKS: u32 = 4;

/// Between two reports of waiting.
const REPORT: Duration = Duration::from_secs(1);

/// Somebody else uses the part.
#[derive(Debug, thiserror::Error)]
pub enum InUse {
    /// A filesystem is mounted from it, from its disk or from one of its partitions.
    #[error("{path}: a filesystem on it is mounted at {at}; unmount that first")]
    Mounted {
        /// The part.
        path: PathBuf,
        /// Where.
        at: PathBuf,
    },
    /// The kernel swaps to it.
    #[error("{path}: is used as swap; end that with swapoff first")]
    Swap {
        /// The part.
        path: PathBuf,
    },
    /// A device of the kernel is built on it: device mapper, md, bcache, loop.
    #[error("{path}: the device {device} is built on it; take that down first")]
    Device {
        /// The part.
        path: PathBuf,
        /// The device's name.
        device: String,
    },
    /// A process has it.
    #[error("{path}: is in use by {holder}; end that first")]
    Process {
        /// The part.
        path: PathBuf,
        /// Who.
        holder: Process,
    },
    /// This process has it already.
    #[error(
        "{path}: is given twice: this process has opened it, its disk or one of its partitions already"
    )]
    Twice {
        /// The part.
        path: PathBuf,
    },
    /// The lock is held and no living process holds it.
    #[error("{path}: is still held after {} s, by no living process: probably I/O of a process that died is in flight; try again when the disk has ended it", waited.as_secs())]
    Nobody {
        /// The part.
        path: PathBuf,
        /// For how long it was tried.
        waited: Duration,
    },
}

/// What a caller may tell its user while it waits.
#[derive(Clone, Copy, Debug)]
pub struct Waiting<'a> {
    /// The part.
    pub path: &'a Path,
    /// For how long already.
    pub waited: Duration,
    /// For how long at most.
    pub patience: Duration,
}

/// Opens a part and locks it; waits for I/O of the dead, at most `patience`, telling `progress` once
/// at the beginning and then every second.
pub(super) fn acquire(
    kernel: &Kernel,
    located: &Located,
    access: Access,
    patience: Duration,
    progress: &mut dyn FnMut(Waiting<'_>),
) -> Result<File, PartError> {
    let path = &located.path;
    let began = Instant::now();
    let mut next_report = Duration::ZERO;
    let mut looks = 0;
    loop {
        if let Some(file) = attempt(located, access)? {
            refuse_quiet_users(kernel, located)?;
            return Ok(file);
        }
        let waited = began.elapsed();
        let user = user(kernel, located.identity);
        let refused = match &user {
            User::Mounted(_) | User::Swap | User::Device(_) => true,
            User::Process(_) | User::ThisProcess => {
                looks += 1;
                looks == LOOKS
            }
            User::Nobody { .. } => {
                looks = 0;
                waited >= patience
            }
        };
        if refused {
            return Err(user.refusal(path.clone(), waited).into());
        }
        if looks == 0 && waited >= next_report {
            progress(Waiting {
                path,
                waited,
                patience,
            });
            next_report = waited + REPORT;
        }
        std::thread::sleep(RETRY);
    }
}

/// One try: the open and locked file, or `None` if somebody else has the lock.
fn attempt(located: &Located, access: Access) -> Result<Option<File>, PartError> {
    let exclusive = match located.identity {
        Identity::Device(_) => libc::O_EXCL,
        Identity::File { .. } => 0,
    };
    let file = match open_direct(located, access, exclusive) {
        Ok(file) => file,
        Err(PartError::Open { source, .. }) if source.raw_os_error() == Some(libc::EBUSY) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    if let Identity::File { .. } = located.identity {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => {
                return Err(PartError::Lock {
                    path: located.path.clone(),
                    source: error.into(),
                });
            }
        }
    }
    Ok(Some(file))
}

/// Opens for direct I/O what was located, and nothing that has taken its place.
pub(super) fn open_direct(
    located: &Located,
    access: Access,
    flags: i32,
) -> Result<File, PartError> {
    let path = &located.path;
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(access == Access::ReadWrite)
        .custom_flags(libc::O_DIRECT | flags);
    let file = options
        .open(&located.canonical)
        .map_err(|source| match source.raw_os_error() {
            Some(libc::EINVAL) => PartError::NoDirectIo { path: path.clone() },
            Some(_) | None => cannot_open(located, source),
        })?;
    let inspect = |source| PartError::Inspect {
        path: path.clone(),
        what: "identity",
        source,
    };
    let opened = Identity::of(&file.metadata().map_err(inspect)?);
    if opened != Ok(located.identity) {
        return Err(PartError::Replaced { path: path.clone() });
    }
    Ok(file)
}

/// Refuses the users that take no lock which ours would meet: a loop device, and swap in a file.
fn refuse_quiet_users(kernel: &Kernel, located: &Located) -> Result<(), InUse> {
    let path = &located.path;
    if let Some(device) = kernel.loops_over(located.identity).into_iter().next() {
        return Err(InUse::Device {
            path: path.clone(),
            device: device.name,
        });
    }
    if kernel.is_swap(located.identity) {
        return Err(InUse::Swap { path: path.clone() });
    }
    Ok(())
}

/// Who keeps a lock from being got.
#[derive(PartialEq, Eq, Debug)]
enum User {
    Mounted(PathBuf),
    Swap,
    Device(String),
    Process(Process),
    ThisProcess,
    /// No living process that would hold it; perhaps one that merely reads.
    Nobody {
        watcher: Option<Process>,
    },
}

impl User {
    fn refusal(self, path: PathBuf, waited: Duration) -> InUse {
        match self {
            User::Mounted(at) => InUse::Mounted { path, at },
            User::Swap => InUse::Swap { path },
            User::Device(device) => InUse::Device { path, device },
            User::Process(holder)
            | User::Nobody {
                watcher: Some(holder),
            } => InUse::Process { path, holder },
            User::ThisProcess => InUse::Twice { path },
            User::Nobody { watcher: None } => InUse::Nobody { path, waited },
        }
    }
}

fn user(kernel: &Kernel, identity: Identity) -> User {
    let places = related(kernel, identity);
    for place in &places {
        if let Some(user) = user_in_the_kernel(kernel, *place) {
            return user;
        }
    }
    match identity {
        Identity::File { .. } => user_of_file(kernel, identity),
        Identity::Device(_) => user_by_open_files(kernel, &places),
    }
}

/// The places whose use conflicts with the use of this one: for a partition its disk too, for a disk
/// its partitions.
fn related(kernel: &Kernel, identity: Identity) -> Vec<Identity> {
    let Identity::Device(number) = identity else {
        return vec![identity];
    };
    let disk = kernel.partition(number).map(|partition| partition.disk);
    let numbers: Vec<DeviceNumber> = [number]
        .into_iter()
        .chain(disk)
        .chain(kernel.partitions(number))
        .collect();
    numbers.into_iter().map(Identity::Device).collect()
}

fn user_in_the_kernel(kernel: &Kernel, place: Identity) -> Option<User> {
    if let Identity::Device(number) = place {
        if let Some(at) = kernel.mount_points(&[number]).into_iter().next() {
            return Some(User::Mounted(at));
        }
        if let Some(device) = kernel.holders(number).into_iter().next() {
            return Some(User::Device(device));
        }
    }
    kernel.is_swap(place).then_some(User::Swap)
}

/// The kernel lists who took an `flock`. A number in that list proves little: its process may have
/// died, and another may have got the number; so it counts only with the file open.
fn user_of_file(kernel: &Kernel, file: Identity) -> User {
    let listed = kernel.flock_holders(file);
    let holders: Vec<u32> = listed
        .into_iter()
        .filter(|pid| kernel.may_have_open(*pid, file))
        .collect();
    if holders.contains(&std::process::id()) {
        return User::ThisProcess;
    }
    if let Some(pid) = holders
        .into_iter()
        .find(|pid| kernel.life(*pid) == Life::Alive)
    {
        return User::Process(kernel.process(pid));
    }
    // The list says nothing on btrfs, where a file's filesystem has two numbers, nor about a child
    // that inherited the open file from a process that is gone.
    user_by_open_files(kernel, &[file])
}

/// Where the kernel does not list who holds a lock, it is guessed by who has the thing open; of
/// ourselves we know that we never open for writing without locking.
fn user_by_open_files(kernel: &Kernel, places: &[Identity]) -> User {
    let this = kernel.opening(std::process::id(), places);
    if this == Some(Opening::ForWriting) {
        return User::ThisProcess;
    }
    let openers = kernel.openers(places).into_iter();
    let mut living = openers.filter(|(process, _)| kernel.life(process.pid) == Life::Alive);
    match (living.next(), this) {
        (Some((process, Opening::ForWriting)), _) => User::Process(process),
        (_, Some(Opening::ForReading | Opening::ForWriting)) => User::ThisProcess,
        (Some((process, Opening::ForReading)), None) => User::Nobody {
            watcher: Some(process),
        },
        (None, None) => User::Nobody { watcher: None },
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a part has one user; the living are named at once, the dead are waited for. Method: real
    //! locks on real files, held by `flock` of util-linux or by an open file that is in no process; laid
    //! out machines for device mapper, md and partitions; the real devices are in `device_tests`.

    use super::super::part::Part;
    use super::*;
    use crate::kernel::layout::Machine;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    use std::io::IoSlice;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;
    use std::process::{Child, Command, Stdio};

    /// A file that is open nowhere.
    fn file_of_zeroes() -> tempfile::TempPath {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 16).unwrap();
        file.into_temp_path()
    }

    fn open(path: &Path) -> Result<Part, PartError> {
        Part::open(path, Access::ReadWrite)
    }

    /// A process that holds the lock until it is killed.
    fn lock_elsewhere(path: &Path) -> Child {
        let mut child = Command::new("flock")
            .arg(path)
            .args(["sh", "-c", "echo locked; exec sleep 60"])
            .stdout(Stdio::piped())
            .spawn();
        let child_ref = child
            .as_mut()
            .expect("flock of util-linux is not installed: run ci/setup");
        let mut line = String::new();
        let mut output = std::io::BufReader::new(child_ref.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut output, &mut line).unwrap();
        assert_eq!(line, "locked\n");
        child.unwrap()
    }

    /// Locks a file and puts the open file where no process has it: into a socket's queue. Closing the
    /// socket ends it. This is what I/O in flight of a dead process looks like from outside.
    fn lock_by_nobody(path: &Path) -> (UnixDatagram, UnixDatagram) {
        let locked = File::open(path).unwrap();
        rustix::fs::flock(&locked, FlockOperation::NonBlockingLockExclusive).unwrap();
        let (near, far) = UnixDatagram::pair().unwrap();
        let descriptors = [locked.as_fd()];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
        rustix::net::sendmsg(
            &near,
            &[IoSlice::new(b"x")],
            &mut ancillary,
            SendFlags::empty(),
        )
        .unwrap();
        (near, far)
    }

    #[test]
    fn a_file_opened_twice_by_one_process_is_refused_and_free_again_after_closing() {
        let file = file_of_zeroes();
        let first = open(&file).unwrap();
        let error = open(&file).unwrap_err();
        assert!(
            matches!(error, PartError::InUse(InUse::Twice { .. })),
            "{error}"
        );
        drop(first);
        open(&file).unwrap();
    }

    #[test]
    fn a_read_only_part_is_fenced_too() {
        let file = file_of_zeroes();
        let _first = Part::open(&file, Access::ReadOnly).unwrap();
        let error = open(&file).unwrap_err();
        assert!(
            matches!(error, PartError::InUse(InUse::Twice { .. })),
            "{error}"
        );
    }

    #[test]
    fn a_living_holder_is_named_at_once_whatever_the_patience() {
        let file = file_of_zeroes();
        let mut holder = lock_elsewhere(&file);
        let began = Instant::now();
        let error =
            Part::open_patiently(&file, Access::ReadWrite, PATIENCE, &mut |_| {}).unwrap_err();
        assert!(began.elapsed() < PATIENCE / 2, "it waited");
        let PartError::InUse(InUse::Process { holder: named, .. }) = &error else {
            panic!("{error}")
        };
        assert!(
            named.command.contains("sleep 60") || named.command.contains("flock"),
            "{named}"
        );
        assert!(
            error
                .to_string()
                .contains(&format!("process {}", named.pid)),
            "{error}"
        );
        holder.kill().unwrap();
        holder.wait().unwrap();
    }

    #[test]
    fn a_lock_that_no_process_holds_is_waited_for_and_got() {
        let file = file_of_zeroes();
        let sockets = lock_by_nobody(&file);
        let mut reports = Vec::new();
        let mut sockets = Some(sockets);
        let part = Part::open_patiently(&file, Access::ReadWrite, PATIENCE, &mut |waiting| {
            reports.push((waiting.path.to_path_buf(), waiting.patience));
            sockets.take();
        });
        part.unwrap();
        assert_eq!(reports, [(file.to_path_buf(), PATIENCE)]);
    }

    #[test]
    fn patience_with_the_dead_has_an_end() {
        let file = file_of_zeroes();
        let _sockets = lock_by_nobody(&file);
        for patience in [Duration::ZERO, Duration::from_millis(200)] {
            let error =
                Part::open_patiently(&file, Access::ReadWrite, patience, &mut |_| {}).unwrap_err();
            let PartError::InUse(InUse::Nobody { waited, .. }) = &error else {
                panic!("{error}")
            };
            assert!(*waited >= patience, "{error}");
        }
    }

    #[test]
    fn a_part_that_is_replaced_between_looking_and_opening_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("part");
        std::fs::write(&path, [0; 4096]).unwrap();
        let located = Located::find(&path).unwrap();
        let keep_the_inode = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, [0; 4096]).unwrap();
        let error = acquire(
            &Kernel::running(),
            &located,
            Access::ReadWrite,
            Duration::ZERO,
            &mut |_| {},
        )
        .unwrap_err();
        assert!(matches!(error, PartError::Replaced { .. }), "{error}");
        drop(keep_the_inode);
    }

    // Who it is, on machines that are laid out.

    fn device(text: &str) -> Identity {
        Identity::Device(text.parse().unwrap())
    }

    #[test]
    fn a_disk_is_held_by_what_is_built_on_its_partitions_and_the_other_way_round() {
        let machine = Machine::empty();
        machine
            .disk("sda", "8:0")
            .partition("sda", "sda1", "8:1", 2048)
            .partition("sda", "sda2", "8:2", 4096)
            .disk("sdb", "8:16");
        machine.file("sys/devices/pci/block/sda/sda1/holders/md127", "");
        let kernel = machine.kernel();
        let check = |number: &str, expected: User| {
            assert_eq!(user(&kernel, device(number)), expected, "{number}");
        };
        check("8:0", User::Device("md127".into()));
        check("8:1", User::Device("md127".into()));
        check("8:2", User::Nobody { watcher: None });
        check("8:16", User::Nobody { watcher: None });
    }

    #[test]
    fn a_disk_with_a_mounted_partition_is_mounted_and_its_other_partition_is_not() {
        let machine = Machine::empty();
        machine
            .disk("sda", "8:0")
            .partition("sda", "sda1", "8:1", 2048)
            .partition("sda", "sda2", "8:2", 4096);
        machine.file(
            "proc/self/mountinfo",
            "22 1 8:1 / /boot rw - ext4 /dev/sda1 rw\n",
        );
        let kernel = machine.kernel();
        let check = |number: &str, expected: User| {
            assert_eq!(user(&kernel, device(number)), expected, "{number}");
        };
        check("8:0", User::Mounted("/boot".into()));
        check("8:1", User::Mounted("/boot".into()));
        check("8:2", User::Nobody { watcher: None });
    }

    #[test]
    fn a_number_in_the_list_of_locks_proves_nothing_without_the_open_file() {
        let machine = Machine::empty();
        let file = file_of_zeroes();
        let other = file_of_zeroes();
        let identity = Located::find(&file).unwrap().identity;
        let Identity::File { filesystem, inode } = identity else {
            panic!("a file")
        };
        let lock = format!(
            "1: FLOCK  ADVISORY  WRITE 70 {:02x}:{:02x}:{inode} 0 EOF\n",
            filesystem.major, filesystem.minor
        );
        machine
            .file("proc/locks", lock)
            .process(70, "reborn", &other, "0100002");
        let kernel = machine.kernel();
        assert_eq!(user(&kernel, identity), User::Nobody { watcher: None });

        machine.process(71, "heir", &file, "0100002");
        assert_eq!(
            user(&kernel, identity),
            User::Process(Process {
                pid: 71,
                command: "heir".into()
            })
        );
    }

    #[test]
    fn a_process_that_only_watches_is_no_reason_to_give_up_waiting() {
        let machine = Machine::empty();
        let file = file_of_zeroes();
        let identity = Located::find(&file).unwrap().identity;
        machine.process(70, "smartd", &file, "0100000");
        let watcher = Process {
            pid: 70,
            command: "smartd".into(),
        };
        assert_eq!(
            user(&machine.kernel(), identity),
            User::Nobody {
                watcher: Some(watcher)
            }
        );
    }

    #[test]
    fn a_process_that_was_killed_is_waited_for() {
        let machine = Machine::empty();
        let file = file_of_zeroes();
        let identity = Located::find(&file).unwrap().identity;
        machine.process(70, "ujournal start vol0", &file, "0100002");
        machine.file("proc/70/status", "SigPnd:\t0000000000000100\n");
        assert_eq!(
            user(&machine.kernel(), identity),
            User::Nobody { watcher: None }
        );
    }
}
