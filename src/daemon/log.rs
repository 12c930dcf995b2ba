//! The daemon's log: a file under `/run/ujournal` that never grows beyond a bound.
//!
//! `NAME.log` is begun anew at each start, and when it is full; what it held before is `NAME.log.old`,
//! so that the last words of a daemon that died are still there after the next one has taken over. How
//! much is written says the variable `UJOURNAL_LOG` in the manner of `tracing` (`info` unless given).

use crate::outcome::Failure;
use crate::units::{MIB, to_u64};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, fmt};

/// Bytes of one of the two files. They lie in memory.
const LOG_BYTES_MAX: u64 = MIB;

/// Whether what goes to the log goes to stderr too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Echo {
    /// With `--foreground`.
    ToStderr,
    /// Nobody is there to read it.
    Nowhere,
}

/// Begins the log of this process. From here on a panic ends the process, and says so in the log.
pub fn begin(path: &Path, echo: Echo) -> Result<(), Failure> {
    let log = BoundedLog::create(path, LOG_BYTES_MAX).map_err(|error| {
        Failure::failed(format!("{}: cannot be written: {error}", path.display()))
    })?;
    let log = Arc::new(log);
    let level = || {
        EnvFilter::builder()
            .with_env_var("UJOURNAL_LOG")
            .with_default_directive(tracing::Level::INFO.into())
            .from_env_lossy()
    };
    let to_file = fmt::layer()
        .with_ansi(false)
        .with_target(false)
        .with_writer(Arc::clone(&log));
    let to_stderr = (echo == Echo::ToStderr).then(|| {
        fmt::layer()
            .with_ansi(false)
            .with_target(false)
            .with_writer(io::stderr)
    });
    tracing_subscriber::registry()
        .with(level())
        .with(to_file)
        .with(to_stderr)
        .try_init()
        .map_err(|error| Failure::failed(format!("the log cannot begin: {error}")))?;
    abort_on_panic(log);
    Ok(())
}

/// A thread that panicked has left invariants broken: the process must not go on answering requests.
fn abort_on_panic(log: Arc<BoundedLog>) {
    std::panic::set_hook(Box::new(move |panic| {
        // Not through `tracing`: the panic may have come from inside it.
        let what = panic.to_string().replace('\n', " ");
        let words = format!("PANIC {what}; this is a bug in ujournal, the next start recovers\n");
        // If neither can be written there is nobody left to tell.
        drop((&*log).write_all(words.as_bytes()));
        drop(io::stderr().write_all(words.as_bytes()));
        std::process::abort();
    }));
}

/// The last line of a log, for the message of whoever waited for its writer.
pub fn last_line(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().rfind(|line| !line.trim().is_empty())?;
    Some(line.to_owned())
}

/// A file that is moved aside when it is full.
#[derive(Debug)]
struct BoundedLog {
    path: PathBuf,
    max: u64,
    file: Mutex<Counted>,
}

#[derive(Debug)]
struct Counted {
    file: File,
    written: u64,
}

impl BoundedLog {
    fn create(path: &Path, max: u64) -> io::Result<BoundedLog> {
        let file = Mutex::new(begin_anew(path)?);
        Ok(BoundedLog {
            path: path.to_owned(),
            max,
            file,
        })
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn begin_anew(path: &Path) -> io::Result<Counted> {
    let mut old = path.as_os_str().to_owned();
    old.push(".old");
    match fs::rename(path, old) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let file = OpenOptions::new()
        .append(true)
        .create_new(true)
        .mode(0o644)
        .open(path)?;
    Ok(Counted { file, written: 0 })
}

impl Write for &BoundedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut counted = self.counted();
        if counted.written >= self.max {
            *counted = begin_anew(&self.path)?;
        }
        let written = counted.file.write(bytes)?;
        counted.written += to_u64(written);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.counted().file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_bounded_and_keeps_what_came_before() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("vol0.log");
        let old = folder.path().join("vol0.log.old");
        fs::write(&path, "the last words of the one before\n").expect("written");

        let log = BoundedLog::create(&path, 1000).expect("created");
        assert_eq!(
            fs::read_to_string(&old).expect("kept"),
            "the last words of the one before\n"
        );
        assert_eq!(last_line(&path), None);
        for number in 0..1000 {
            writeln!(&log, "line {number}").expect("written");
            let size = |path: &Path| fs::metadata(path).map_or(0, |found| found.len());
            assert!(size(&path) <= 1020 && size(&old) <= 1020);
        }
        assert_eq!(last_line(&path).as_deref(), Some("line 999"));
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2);
    }

    #[test]
    fn the_last_line_is_the_last_one_that_says_something() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        assert_eq!(last_line(&path), None);
        for (text, line) in [("", None), ("a\nb\n\n  \n", Some("b")), ("a", Some("a"))] {
            fs::write(&path, text).expect("written");
            assert_eq!(last_line(&path).as_deref(), line);
        }
    }
}
