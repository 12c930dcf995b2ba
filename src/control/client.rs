//! The commands' side of the control socket. Blocking: a command has nothing else to do.

use super::progress::Progress;
use super::protocol::{REPLY_BYTES_MAX, Reply, Request, line};
use super::run_dir::RunDir;
use super::status::Status;
use crate::config::ArrayName;
use crate::outcome::Failure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, pidfd_open};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long the answer to a question may take; work may take any time, as long as the daemon lives.
const ANSWER_WAIT: Duration = Duration::from_secs(20);
/// How long a daemon that has stopped may take to be gone.
const EXIT_WAIT: Timespec = Timespec {
    tv_sec: 30,
    tv_nsec: 0,
};

/// A connection to one array's daemon.
#[derive(Debug)]
pub struct Client {
    name: ArrayName,
    stream: BufReader<UnixStream>,
    daemon: Option<OwnedFd>,
}

impl Client {
    /// Connects to the daemon of `name`.
    pub fn connect(run: &RunDir, name: &ArrayName) -> Result<Client, Failure> {
        let stream = run.connect(name)?;
        // Taken while it surely lives: later its pid could be another's. A server in this very process
        // (in tests) is not waited for.
        let daemon = rustix::net::sockopt::socket_peercred(&stream)
            .ok()
            .filter(|credentials| credentials.pid != rustix::process::getpid())
            .and_then(|credentials| pidfd_open(credentials.pid, PidfdFlags::empty()).ok());
        Ok(Client {
            name: name.clone(),
            stream: BufReader::new(stream),
            daemon,
        })
    }

    /// How the array fares.
    pub fn status(&mut self) -> Result<Status, Failure> {
        self.ask(Request::Status, Some(ANSWER_WAIT))?;
        match self.reply()? {
            Reply::Status(status) => Ok(*status),
            Reply::Error(failure) => Err(self.named(failure)),
            Reply::Progress(_) | Reply::Done {} => Err(self.broken("an answer to something else")),
        }
    }

    /// Returns once everything that was answered when it was called is durable and home.
    pub fn sync(&mut self, show: &mut dyn FnMut(&Progress)) -> Result<(), Failure> {
        self.work(Request::Sync, show)
    }

    /// Stops the array; returns when its daemon is gone.
    pub fn stop(mut self, force: Force, show: &mut dyn FnMut(&Progress)) -> Result<(), Failure> {
        let result = self.work(
            Request::Stop {
                force: force == Force::Yes,
            },
            show,
        );
        if result.is_ok() {
            self.wait_for_exit()
        } else {
            result
        }
    }

    fn work(&mut self, request: Request, show: &mut dyn FnMut(&Progress)) -> Result<(), Failure> {
        self.ask(request, None)?;
        loop {
            match self.reply()? {
                Reply::Progress(progress) => show(&progress),
                Reply::Done {} => return Ok(()),
                Reply::Error(failure) => return Err(self.named(failure)),
                Reply::Status(_) => return Err(self.broken("an answer to something else")),
            }
        }
    }

    fn ask(&mut self, request: Request, wait: Option<Duration>) -> Result<(), Failure> {
        let stream = self.stream.get_mut();
        stream
            .set_read_timeout(wait)
            .and_then(|()| stream.set_write_timeout(Some(ANSWER_WAIT)))
            .and_then(|()| stream.write_all(&line(&request)))
            .map_err(|error| self.lost(&error))
    }

    fn reply(&mut self) -> Result<Reply, Failure> {
        let mut text = Vec::new();
        let limit = u64::try_from(REPLY_BYTES_MAX).expect("it is small");
        let read = (&mut self.stream).take(limit).read_until(b'\n', &mut text);
        read.map_err(|error| self.lost(&error))?;
        if text.is_empty() {
            return Err(self.died());
        }
        if text.last() != Some(&b'\n') {
            return Err(self.broken("a line that does not end"));
        }
        serde_json::from_slice(&text).map_err(|error| self.broken(&error.to_string()))
    }

    /// A start that follows must not find the old daemon on its way out.
    fn wait_for_exit(&self) -> Result<(), Failure> {
        let Some(daemon) = &self.daemon else {
            return Ok(());
        };
        let mut fds = [PollFd::new(daemon, PollFlags::IN)];
        match rustix::io::retry_on_intr(|| poll(&mut fds, Some(&EXIT_WAIT))) {
            Ok(1..) => Ok(()),
            Ok(0) => Err(Failure::failed(format!(
                "array {} is stopped, but its daemon has not ended for {} s",
                self.name, EXIT_WAIT.tv_sec
            ))),
            Err(error) => Err(self.lost(&error.into())),
        }
    }

    fn named(&self, failure: Failure) -> Failure {
        Failure {
            message: format!("array {}: {}", self.name, failure.message),
            ..failure
        }
    }

    fn lost(&self, error: &io::Error) -> Failure {
        let is = |kinds: &[io::ErrorKind]| kinds.contains(&error.kind());
        if is(&[io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut]) {
            let seconds = ANSWER_WAIT.as_secs();
            Failure::failed(format!(
                "array {}: its daemon has not answered for {seconds} s",
                self.name
            ))
        } else if is(&[io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe]) {
            self.died()
        } else {
            Failure::failed(format!("array {}: control socket: {error}", self.name))
        }
    }

    /// The connection ended before the answer came.
    fn died(&self) -> Failure {
        Failure::failed(format!(
            "array {}: its daemon ended without an answer: its log says why",
            self.name
        ))
    }

    fn broken(&self, found: &str) -> Failure {
        Failure::failed(format!(
            "array {}: control socket: expected an answer, found {found}",
            self.name
        ))
    }
}

/// Whether a stop goes on although somebody has the device open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Force {
    /// It does not.
    No,
    /// It does.
    Yes,
}
