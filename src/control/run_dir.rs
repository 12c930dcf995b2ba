//! `/run/ujournal`: where each running array has its socket, its lock and its log.
//!
//! ```text
//!   NAME.sock     the control socket, 0600
//!   NAME.lock     held (flock) by the daemon as long as it lives; in it its pid, and a line how far it is
//!   NAME.device   the device that it serves or has left: how one without a daemon is known again
//!   NAME.log      what it did; NAME.log.old is what came before
//! ```
//!
//! A socket file alone proves nothing: a daemon that was killed leaves it behind. The lock is what
//! says whether there is a daemon, for the kernel lets go of it when the process ends, however it
//! ends. The file of the lock stays: unlinking it would let two daemons lock two different files.
//!
//! Nor does `NAME.device` prove that there is a device: it says which identity to look for.

use super::status::DeviceStatus;
use crate::config::ArrayName;
use crate::kernel::{Kernel, Life};
use crate::outcome::Failure;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _};
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a start waits for a killed daemon to let go.
const DYING_WAIT: Duration = Duration::from_secs(60);

/// Bytes of `NAME.device` that are looked at.
const RECORD_BYTES_MAX: u64 = 64 * 1024;

/// How far a daemon is, as its lock says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// It has no socket yet.
    Starting,
    /// Its socket answers.
    Serving,
    /// It is being stopped, or ends by itself.
    Stopping,
}

impl Phase {
    const ALL: [Phase; 3] = [Phase::Starting, Phase::Serving, Phase::Stopping];

    fn word(self) -> &'static str {
        match self {
            Phase::Starting => "starting",
            Phase::Serving => "serving",
            Phase::Stopping => "stopping",
        }
    }
}

/// A daemon that lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Daemon {
    /// Its process.
    pub pid: u32,
    /// How far it is.
    pub phase: Phase,
}

/// The device of an array, for whoever finds no daemon to ask.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceRecord {
    /// The array's identity, which the device carries as well.
    pub uuid: uuid::Uuid,
    /// The device as it was when it was written down.
    pub device: DeviceStatus,
}

/// The folder.
#[derive(Clone, Debug)]
pub struct RunDir(PathBuf);

impl RunDir {
    /// The one of this machine.
    pub fn system() -> RunDir {
        RunDir(PathBuf::from("/run/ujournal"))
    }

    /// Another one: for tests.
    pub fn at(path: &Path) -> RunDir {
        RunDir(path.to_owned())
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The control socket of an array.
    pub fn socket(&self, name: &ArrayName) -> PathBuf {
        self.0.join(format!("{name}.sock"))
    }

    /// The lock of an array.
    pub fn lock_file(&self, name: &ArrayName) -> PathBuf {
        self.0.join(format!("{name}.lock"))
    }

    /// The log of an array.
    pub fn log(&self, name: &ArrayName) -> PathBuf {
        self.0.join(format!("{name}.log"))
    }

    /// What is known of an array's device.
    pub fn device_file(&self, name: &ArrayName) -> PathBuf {
        self.0.join(format!("{name}.device"))
    }

    /// Makes the folder if it is not there, and makes sure that nobody else can write in it.
    pub fn create(&self) -> Result<(), Failure> {
        let failed = |error: io::Error| {
            Failure::failed(format!("{}: cannot be made: {error}", self.0.display()))
        };
        match DirBuilder::new().mode(0o755).create(&self.0) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(failed(error)),
        }?;
        let found = fs::symlink_metadata(&self.0).map_err(failed)?;
        let own = rustix::process::geteuid().as_raw();
        if !found.is_dir() || found.uid() != own || found.permissions().mode() & 0o022 != 0 {
            return Err(Failure::failed(format!(
                "{}: expected a folder that belongs to user {own} and that nobody else may write in, \
                 found mode {:o} of user {}",
                self.0.display(),
                found.permissions().mode(),
                found.uid()
            )));
        }
        Ok(())
    }

    /// The arrays of which there is a daemon here, or may be something left, by name.
    pub fn names(&self) -> io::Result<Vec<ArrayName>> {
        let entries = match fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut names = BTreeSet::new();
        for entry in entries {
            let file = entry?.file_name();
            let Some((name, kind)) = file.to_str().and_then(|file| file.rsplit_once('.')) else {
                continue;
            };
            let Ok(name) = name.parse::<ArrayName>() else {
                continue;
            };
            // The lock's file stays for ever.
            if ["sock", "device"].contains(&kind) || kind == "lock" && self.daemon(&name).is_some()
            {
                names.insert(name);
            }
        }
        Ok(names.into_iter().collect())
    }

    /// The array whose daemon is process `pid`.
    pub fn array_of(&self, pid: u32) -> Option<ArrayName> {
        let names = self.names().ok()?;
        names
            .into_iter()
            .find(|name| self.daemon(name).is_some_and(|daemon| daemon.pid == pid))
    }

    /// Makes this process the daemon of `name`.
    ///
    /// Refused at once, naming its pid, while another one lives. One that is dying (killed, its I/O
    /// still in flight) is waited for; `waiting` is told now and then for how long, and may give up.
    pub fn lock(
        &self,
        name: &ArrayName,
        mut waiting: impl FnMut(Duration) -> Result<(), Failure>,
    ) -> Result<DaemonLock, Failure> {
        let path = self.lock_file(name);
        let failed =
            |error: io::Error| Failure::failed(format!("{}: cannot lock: {error}", path.display()));
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .open(&path)
            .map_err(failed)?;
        let begun = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
            // A holder that has not written its pid yet is alive: it has just begun.
            let pid = read_daemon(&mut file).map(|daemon| daemon.pid);
            let waited = begun.elapsed();
            if !pid.is_some_and(is_dying) && waited > Duration::from_millis(200) {
                let pid = pid.map_or("unknown pid".to_owned(), |pid| format!("pid {pid}"));
                return Err(Failure::refused(format!(
                    "array {name} is running already ({pid})"
                )));
            }
            if waited > DYING_WAIT {
                return Err(Failure::refused(format!(
                    "array {name}: its killed daemon still holds it after {} s: its I/O does not end",
                    DYING_WAIT.as_secs()
                )));
            }
            waiting(waited)?;
            std::thread::sleep(Duration::from_millis(50));
        }
        let lock = DaemonLock(file);
        lock.write(Phase::Starting).map_err(failed)?;
        Ok(lock)
    }

    /// The daemon of `name`, if one lives.
    pub fn daemon(&self, name: &ArrayName) -> Option<Daemon> {
        self.holder(name).filter(|daemon| !is_dying(daemon.pid))
    }

    /// Who holds the lock of `name`, perhaps only because its I/O has not ended.
    fn holder(&self, name: &ArrayName) -> Option<Daemon> {
        let mut file = File::open(self.lock_file(name)).ok()?;
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => None,
            Err(_) => read_daemon(&mut file),
        }
    }

    /// Whether the last daemon of `name`, which does not live any more, ended while it served.
    pub fn has_died(&self, name: &ArrayName) -> bool {
        let last = File::open(self.lock_file(name)).ok();
        let last = last.and_then(|mut file| read_daemon(&mut file));
        last.is_some_and(|last| last.phase == Phase::Serving)
    }

    /// Writes down which device the array has, in one step.
    pub fn record_device(
        &self,
        name: &ArrayName,
        record: &DeviceRecord,
        _held: &DaemonLock,
    ) -> io::Result<()> {
        let text = serde_json::to_vec(record).expect("plain data always has a JSON form");
        let new = self.0.join(format!(".{name}.device.new"));
        fs::write(&new, text)?;
        fs::rename(&new, self.device_file(name))
    }

    /// The device that the array has or had. What cannot be understood counts as nothing.
    pub fn device(&self, name: &ArrayName) -> Option<DeviceRecord> {
        let file = File::open(self.device_file(name)).ok()?;
        let mut text = Vec::new();
        file.take(RECORD_BYTES_MAX).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// The control socket, listening. The caller holds the lock, so a file that is there is stale.
    ///
    /// It appears under its name only once it is right, and in one step.
    pub fn listen(&self, name: &ArrayName, held: &DaemonLock) -> Result<UnixListener, Failure> {
        let path = self.socket(name);
        let new = self.0.join(format!(".{name}.sock.new"));
        let made = (|| {
            match fs::remove_file(&new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
            let listener = UnixListener::bind(&new)?;
            fs::set_permissions(&new, fs::Permissions::from_mode(0o600))?;
            fs::rename(&new, &path)?;
            held.tell(Phase::Serving);
            Ok(listener)
        })();
        made.map_err(|error: io::Error| {
            Failure::failed(format!("{}: cannot listen: {error}", path.display()))
        })
    }

    /// A connection to the daemon of `name`, or the reason why there is none.
    pub fn connect(&self, name: &ArrayName) -> Result<UnixStream, Failure> {
        // The socket of a killed process takes connections as long as its I/O is in flight.
        if self.holder(name).is_some_and(|holder| is_dying(holder.pid)) {
            return Err(Failure::failed(no_such_array(name)));
        }
        let path = self.socket(name);
        UnixStream::connect(&path).map_err(|error| {
            let nobody_listens = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused]
                .contains(&error.kind());
            Failure::failed(match (nobody_listens, self.daemon(name)) {
                (true, None) => no_such_array(name),
                (true, Some(Daemon { pid, phase })) => match phase {
                    Phase::Starting => format!("array {name} is still starting (pid {pid})"),
                    Phase::Stopping => format!("array {name} is being stopped (pid {pid})"),
                    Phase::Serving => format!(
                        "array {name} is running (pid {pid}), but nobody listens at {}: end it with `kill {pid}`, \
                         which loses nothing, and start it again",
                        path.display()
                    ),
                },
                (false, _) if error.kind() == io::ErrorKind::PermissionDenied => format!(
                    "array {name}: {}: permission denied: only root may ask, run it with sudo",
                    path.display()
                ),
                (false, _) => format!("array {name}: {}: cannot connect: {error}", path.display()),
            })
        })
    }
}

fn no_such_array(name: &ArrayName) -> String {
    format!("no array {name} is running; ujournal list shows those that are")
}

/// Held as long as it lives: this process is the daemon of an array.
#[derive(Debug)]
pub struct DaemonLock(File);

impl DaemonLock {
    /// Lets everybody see how far this daemon is.
    pub fn tell(&self, phase: Phase) {
        if let Err(error) = self.write(phase) {
            tracing::warn!("the lock still says something else than {phase:?}: {error}");
        }
    }

    /// In one write, and of one length for one process: nobody sees half of it.
    fn write(&self, phase: Phase) -> io::Result<()> {
        let text = format!("{}\n{:<8}\n", std::process::id(), phase.word());
        self.0.write_all_at(text.as_bytes(), 0)?;
        self.0
            .set_len(u64::try_from(text.len()).expect("it is short"))
    }
}

fn read_daemon(file: &mut File) -> Option<Daemon> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(64).read_to_string(&mut text).ok()?;
    let mut lines = text.lines();
    let pid = lines.next()?.trim().parse().ok()?;
    let word = lines.next().map_or("", str::trim);
    let phase = Phase::ALL
        .into_iter()
        .find(|phase| phase.word() == word)
        .unwrap_or(Phase::Starting);
    Some(Daemon { pid, phase })
}

/// Whether a process will never run its own code again.
///
/// Such a process can still hold locks, for what it had in flight must end first.
fn is_dying(pid: u32) -> bool {
    Kernel::running().life(pid) == Life::Dead
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn run_dir() -> (tempfile::TempDir, RunDir, ArrayName) {
        let folder = tempfile::tempdir().expect("a folder");
        let run = RunDir::at(&folder.path().join("ujournal"));
        run.create().expect("made");
        (folder, run, "vol0".parse().expect("a name"))
    }

    fn no_wait(_: Duration) -> Result<(), Failure> {
        Ok(())
    }

    #[test]
    fn a_folder_that_others_can_write_in_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("open");
        fs::create_dir(&path).expect("made");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("opened");
        let failure = RunDir::at(&path).create().expect_err("refused");
        assert!(
            failure.message.contains("nobody else may write in"),
            "{failure}"
        );

        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path(), &link).expect("linked");
        RunDir::at(&link).create().expect_err("a link is no folder");
    }

    #[test]
    fn a_second_daemon_of_the_same_name_is_refused_with_the_pid_of_the_first() {
        let (_folder, run, name) = run_dir();
        assert_eq!(run.daemon(&name), None);
        let held = run.lock(&name, no_wait).expect("the first");
        let pid = std::process::id();
        let daemon = |phase| Some(Daemon { pid, phase });
        assert_eq!(run.daemon(&name), daemon(Phase::Starting));
        assert_eq!(run.array_of(pid), Some(name.clone()));
        assert_eq!(run.array_of(1), None);
        for phase in Phase::ALL {
            held.tell(phase);
            assert_eq!(run.daemon(&name), daemon(phase));
        }
        let failure = run.lock(&name, no_wait).expect_err("the second");
        assert_eq!(
            failure,
            Failure::refused(format!("array vol0 is running already (pid {pid})"))
        );
        drop(held);
        assert_eq!(run.daemon(&name), None);
        drop(run.lock(&name, no_wait).expect("the next"));
    }

    #[test]
    fn a_lock_held_by_a_dying_process_is_waited_for() {
        let (_folder, run, name) = run_dir();
        // A zombie is a process that is dying for as long as we like; the lock is held by a copy of
        // its descriptor in another one, as requests in flight would hold it.
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(run.lock_file(&name))
            .expect("opened");
        flock(&file, FlockOperation::LockExclusive).expect("locked");
        let mut holder = Command::new("sleep")
            .arg("1")
            .stdin(Stdio::from(file))
            .spawn()
            .expect("sleep");
        let mut zombie = Command::new("true").spawn().expect("true");
        fs::write(run.lock_file(&name), format!("{}\n", zombie.id())).expect("written");
        while !is_dying(zombie.id()) {
            std::thread::sleep(Duration::from_millis(1));
        }

        // Its socket still takes connections, but nobody will answer.
        let _listener = UnixListener::bind(run.socket(&name)).expect("listens");
        assert_eq!(run.daemon(&name), None);
        let failure = run.connect(&name).expect_err("nobody would answer");
        assert_eq!(failure.message, no_such_array(&name));

        let mut told = 0;
        let held = run.lock(&name, |_| {
            told += 1;
            Ok(())
        });
        assert!(held.is_ok() && told > 0, "{held:?} after {told}");
        zombie.wait().expect("reaped");
        holder.wait().expect("reaped");
    }

    #[test]
    fn whoever_waits_for_a_lock_may_give_up() {
        let (_folder, run, name) = run_dir();
        let _held = run.lock(&name, no_wait).expect("the first");
        let failure = run
            .lock(&name, |_| Err(Failure::failed("enough")))
            .expect_err("given up");
        assert_eq!(failure.message, "enough");
    }

    #[test]
    fn whoever_finds_nobody_listening_learns_how_far_the_daemon_is() {
        let (_folder, run, name) = run_dir();
        let failed = |run: &RunDir| run.connect(&name).expect_err("nobody there").message;
        let nobody = "no array vol0 is running; ujournal list shows those that are";
        assert_eq!(failed(&run), nobody);

        let held = run.lock(&name, no_wait).expect("locked");
        let pid = std::process::id();
        let starting = format!("array vol0 is still starting (pid {pid})");
        assert_eq!(failed(&run), starting);

        // It serves, but its socket is no longer there, or is another one's.
        let listener = run.listen(&name, &held).expect("listens");
        fs::remove_file(run.socket(&name)).expect("there");
        let lost = format!("array vol0 is running (pid {pid}), but nobody listens at ");
        let remedy = format!(": end it with `kill {pid}`, which loses nothing, and start it again");
        let found = failed(&run);
        assert!(
            found.starts_with(&lost) && found.ends_with(&remedy),
            "{found}"
        );
        drop(listener);
        drop(run.listen(&name, &held).expect("listens"));
        assert!(failed(&run).starts_with(&lost), "{}", failed(&run));

        held.tell(Phase::Stopping);
        let stopping = format!("array vol0 is being stopped (pid {pid})");
        assert_eq!(failed(&run), stopping);

        assert!(!run.has_died(&name));
        held.tell(Phase::Serving);

        drop(held);
        assert!(run.has_died(&name));
        assert_eq!(failed(&run), nobody);
        assert_eq!(run.names().expect("listed"), std::slice::from_ref(&name));

        let held = run.lock(&name, no_wait).expect("locked");
        let _listener = run.listen(&name, &held).expect("replaced");
        run.connect(&name).expect("connected");
        let mode = fs::metadata(run.socket(&name))
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn what_is_written_down_of_a_device_is_read_back_and_nonsense_is_nothing() {
        let (_folder, run, name) = run_dir();
        assert_eq!(run.device(&name), None);
        let held = run.lock(&name, no_wait).expect("locked");
        let record = DeviceRecord {
            uuid: uuid::Uuid::from_u128(7),
            device: DeviceStatus {
                block: "/dev/ublkb3".into(),
                link: "/dev/ujournal/vol0".into(),
                size: 1 << 40,
                block_size: 4096,
            },
        };
        for _ in 0..2 {
            run.record_device(&name, &record, &held).expect("written");
            assert_eq!(run.device(&name), Some(record.clone()));
        }
        assert_eq!(run.names().expect("listed"), std::slice::from_ref(&name));
        for nonsense in ["", "{}", "[1]", "{\"uuid\":5}", "\0"] {
            fs::write(run.device_file(&name), nonsense).expect("written");
            assert_eq!(run.device(&name), None, "{nonsense}");
        }
        fs::write(run.device_file(&name), vec![b'['; 1 << 20]).expect("written");
        assert_eq!(run.device(&name), None);
    }

    #[test]
    fn what_shows_an_array_is_listed_by_its_name() {
        let (folder, run, _) = run_dir();
        for file in [
            "b.sock",
            "a.sock",
            "a.lock",
            "a.device",
            "c.device",
            "d.lock",
            "d.log",
            "NO.sock",
            ".x.sock.new",
            ".sock",
            "x.sock.old",
        ] {
            fs::write(run.path().join(file), "").expect("written");
        }
        let names: Vec<String> = run
            .names()
            .expect("listed")
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert_eq!(
            RunDir::at(&folder.path().join("gone"))
                .names()
                .expect("none"),
            []
        );
    }
}
