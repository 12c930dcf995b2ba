//! `/run/ujournal`: where each running array has its socket, its lock and its log.
//!
//! ```text
//!   NAME.sock   the control socket, 0600
//!   NAME.lock   held (flock) by the daemon as long as it lives; its pid is in it
//!   NAME.log    what it did; NAME.log.old is what came before
//! ```
//!
//! A socket file alone proves nothing: a daemon that was killed leaves it behind. The lock is what
//! says whether there is a daemon, for the kernel lets go of it when the process ends, however it
//! ends. The file of the lock stays: unlinking it would let two daemons lock two different files.

use crate::config::ArrayName;
use crate::kernel::{Kernel, Life};
use crate::outcome::Failure;
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a start waits for a killed daemon to let go.
const DYING_WAIT: Duration = Duration::from_secs(60);

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

    /// The arrays that have a socket here, by name.
    pub fn names(&self) -> io::Result<Vec<ArrayName>> {
        let entries = match fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut names = Vec::new();
        for entry in entries {
            let file = entry?.file_name();
            let name = file.to_str().and_then(|file| file.strip_suffix(".sock"));
            names.extend(name.and_then(|name| name.parse::<ArrayName>().ok()));
        }
        names.sort();
        Ok(names)
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
            let pid = read_pid(&mut file);
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
        let pid = format!("{}\n", std::process::id());
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(pid.as_bytes()))
            .map_err(failed)?;
        Ok(DaemonLock { _file: file })
    }

    /// The pid of the daemon of `name`, if there is one.
    pub fn daemon(&self, name: &ArrayName) -> Option<u32> {
        let mut file = File::open(self.lock_file(name)).ok()?;
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => None,
            Err(_) => read_pid(&mut file),
        }
    }

    /// The control socket, listening. The caller holds the lock, so a file that is there is stale.
    ///
    /// It appears under its name only once it is right, and in one step.
    pub fn listen(&self, name: &ArrayName, _held: &DaemonLock) -> Result<UnixListener, Failure> {
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
            Ok(listener)
        })();
        made.map_err(|error: io::Error| {
            Failure::failed(format!("{}: cannot listen: {error}", path.display()))
        })
    }

    /// A connection to the daemon of `name`, or the reason why there is none.
    pub fn connect(&self, name: &ArrayName) -> Result<UnixStream, Failure> {
        let path = self.socket(name);
        UnixStream::connect(&path).map_err(|error| {
            Failure::failed(match (error.kind(), self.daemon(name)) {
                (io::ErrorKind::NotFound, Some(pid)) => {
                    format!("array {name} is still starting (pid {pid})")
                }
                (io::ErrorKind::NotFound, None) => {
                    format!("no running array {name}: {} is not there", path.display())
                }
                (io::ErrorKind::ConnectionRefused, _) => format!(
                    "no running array {name}: its daemon died; \
                     `ujournal start CONFIG` takes over its device, if that is still there"
                ),
                (io::ErrorKind::PermissionDenied, _) => format!(
                    "array {name}: {}: permission denied: only root may ask, run it with sudo",
                    path.display()
                ),
                (_, _) => format!("array {name}: {}: cannot connect: {error}", path.display()),
            })
        })
    }
}

/// Held as long as it lives: this process is the daemon of an array.
#[derive(Debug)]
pub struct DaemonLock {
    _file: File,
}

fn read_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
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
        assert_eq!(run.daemon(&name), Some(pid));
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
    fn a_stale_socket_is_recognised_and_replaced() {
        let (_folder, run, name) = run_dir();
        let failed = |run: &RunDir| run.connect(&name).expect_err("nobody there").message;
        assert!(
            failed(&run).starts_with("no running array vol0: /"),
            "{}",
            failed(&run)
        );

        let held = run.lock(&name, no_wait).expect("locked");
        assert!(
            failed(&run).starts_with("array vol0 is still starting (pid "),
            "{}",
            failed(&run)
        );

        drop(run.listen(&name, &held).expect("listens"));
        assert!(failed(&run).contains("its daemon died"), "{}", failed(&run));
        assert_eq!(run.names().expect("listed"), std::slice::from_ref(&name));

        let _listener = run.listen(&name, &held).expect("replaced");
        run.connect(&name).expect("connected");
        let mode = fs::metadata(run.socket(&name))
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn only_sockets_with_a_name_are_listed() {
        let (folder, run, _) = run_dir();
        for file in [
            "b.sock",
            "a.sock",
            "a.lock",
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
        assert_eq!(names, ["a", "b"]);
        assert_eq!(
            RunDir::at(&folder.path().join("gone"))
                .names()
                .expect("none"),
            []
        );
    }
}
