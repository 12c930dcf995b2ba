//! Both sides of a start in the background: the process that waits, and the first steps of the one that
//! stays.

use super::ready::{Message, Started};
use super::{log, system};
use crate::control::progress::Progress;
use crate::outcome::Failure;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};

/// Tells the executed process that it is the one that stays.
const MARK: &str = "UJOURNAL_DAEMON";

/// Bytes of a line from the process that stays.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Whether this process was executed to stay.
pub fn is_daemon() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Executes this program again with `arguments`, and waits until its device answers or it has failed. An
/// interrupt is passed on: what has not started yet ends, what has is stopped. `log` is what is pointed to
/// if it ends without a word.
pub fn start(
    arguments: &[OsString],
    log: &Path,
    show: &mut dyn FnMut(&Progress),
) -> Result<Started, Failure> {
    let failed = |error: io::Error| Failure::failed(format!("cannot start a daemon: {error}"));
    system::keep_descriptors_from_children().map_err(failed)?;
    let mut child = Command::new("/proc/self/exe")
        .arg0("ujournal")
        .args(arguments)
        .env(MARK, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let pipe = child.stdout.take().expect("it was asked for");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    let last = runtime
        .block_on(listen(pipe.into(), &child, show))
        .map_err(failed)?;
    match last {
        Some(Message::Started(started)) => Ok(started),
        Some(Message::Failed(failure)) => {
            // Who is told that it failed may try again at once: its locks must be gone by then.
            child.wait().map_err(failed)?;
            Err(failure)
        }
        Some(Message::Progress(_)) | None => Err(died(child, log)),
    }
}

/// Everything that the process says until it says how it came out, or says no more.
async fn listen(
    pipe: OwnedFd,
    child: &Child,
    show: &mut dyn FnMut(&Progress),
) -> io::Result<Option<Message>> {
    let mut lines = BufReader::new(pipe::Receiver::from_owned_fd(pipe)?);
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut text = Vec::new();
    loop {
        let mut limited = (&mut lines).take(LINE_BYTES_MAX);
        tokio::select! {
            read = limited.read_until(b'\n', &mut text) => {
                if read? == 0 {
                    return Ok(None);
                }
                match serde_json::from_slice(&text) {
                    Ok(Message::Progress(progress)) => show(&progress),
                    Ok(last) => return Ok(Some(last)),
                    Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
                }
                text.clear();
            }
            Some(()) = interrupt.recv() => pass_on(child),
            Some(()) = terminate.recv() => pass_on(child),
            Some(()) = hangup.recv() => pass_on(child),
        }
    }
}

fn pass_on(child: &Child) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        match kill_process(pid, Signal::TERM) {
            // It may have ended already: then there is nobody to tell.
            Ok(()) | Err(_) => {}
        }
    }
}

/// The process ended without saying why: its status and the last line of its log must do.
fn died(mut child: Child, log: &Path) -> Failure {
    let how = match child.wait() {
        Ok(status) => words(status),
        Err(error) => error.to_string(),
    };
    let last = log::last_line(log).map_or(String::new(), |line| {
        format!(", whose last line is: {line}")
    });
    Failure::failed(format!(
        "the daemon ended while it was starting ({how}); its log is {}{last}",
        log.display()
    ))
}

fn words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "for an unknown reason".to_owned(),
    }
}

/// The first steps of the process that stays: its name, a session of its own, no folder held busy, and
/// stdout, which is the pipe, out of the way of anything that prints.
pub fn detach() -> io::Result<File> {
    // The kernel has called it `exe`, after the path that it was executed by.
    rustix::thread::set_name(c"ujournal")?;
    // If it leads a session already, it was not executed by `start`, and may stay in it.
    match rustix::process::setsid() {
        Ok(_) | Err(rustix::io::Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    std::env::set_current_dir("/")?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let pipe = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(File::from(pipe))
}

/// Up to here stderr was the caller's, for the words of a panic before there is a log.
pub(super) fn let_go_of_stderr() {
    let null = File::options().write(true).open("/dev/null");
    if let Err(error) =
        null.and_then(|null| rustix::stdio::dup2_stderr(&null).map_err(io::Error::from))
    {
        tracing::warn!("stderr stays open: {error}");
    }
}
