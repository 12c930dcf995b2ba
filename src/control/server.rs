//! The daemon's side of the control socket: one thread, a task for each connection.
//!
//! ```text
//!   serving --stop request or signal--> claim --used--> refused (request) or Leave (signal)
//!                                         |free, or forced
//!                                         v
//!                                       stopping --StillServing--> serving
//!                                         |Stopped, StoppedDirty
//!                                         v
//!                                       ended: files removed, then the answer sent, then serve returns
//! ```
//!
//! Only one stop is under way at a time; who asks for another one joins it. The answer to a stop is the last thing that is done, so that
//! whoever gets it finds nothing left but the process on its way out.

use super::in_use::Claim;
use super::port::{Port, Stop, StopEnd};
use super::progress::{Progress, ProgressSink};
use super::protocol::{REQUEST_BYTES_MAX, Reply, Request, line, parse_request};
use crate::outcome::Failure;
use std::cell::Cell;
use std::future::Future;
use std::io;
use std::os::unix::net::UnixListener as StdListener;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::task::LocalSet;
use tokio::time::timeout;

/// Connections at a time; more wait to be accepted.
const CONNECTIONS_MAX: usize = 32;
/// How long a connection may say nothing, and how long it may take to read an answer.
const CLIENT_WAIT: Duration = Duration::from_secs(30);
/// What is read and thrown away so that the answer to a request that was too long arrives.
const DRAIN_BYTES_MAX: u64 = 1 << 20;

/// How serving came to its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// It was stopped as asked.
    Stopped(Stop),
    /// It was stopped, but the array stays dirty.
    StoppedDirty(Stop, Failure),
    /// It ended by itself.
    Died(Failure),
}

/// What whoever owns the process is told.
#[derive(Clone, Copy, Debug)]
pub enum Turn<'a> {
    /// A stop has begun.
    Stopping,
    /// It came to nothing: the array serves as before.
    Serving,
    /// Serving has ended. The last turn, and before anybody else is told: to tidy up.
    Ended(&'a End),
}

/// Serves the control socket until the array is stopped or dies.
///
/// `begin` is called once, when everything is in place, and returns where wishes to end come from outside
/// (signals). `told` is called at each turn.
pub fn serve<P: Port + 'static>(
    listener: StdListener,
    port: P,
    begin: impl FnOnce() -> io::Result<mpsc::Receiver<&'static str>>,
    told: impl Fn(Turn<'_>) + 'static,
) -> io::Result<End> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .thread_stack_size(256 * 1024)
        .build()?;
    let end = LocalSet::new().block_on(&runtime, async move {
        let listener = UnixListener::from_std(listener)?;
        let terminate = begin()?;
        Ok(Server::new(port, told).run(listener, terminate).await)
    });
    // A look at the device that hangs must not keep the process.
    runtime.shutdown_background();
    end
}

struct Server<P> {
    port: P,
    told: Box<dyn Fn(Turn<'_>)>,
    stopping: Cell<bool>,
    /// Told when a stop came to nothing: the loop, so that it watches for an unasked end again.
    serving_again: Notify,
    /// How the stop that is under way came out, for whoever joins it.
    outcome: watch::Sender<Option<Result<End, Failure>>>,
    ended: mpsc::Sender<End>,
}

impl<P: Port + 'static> Server<P> {
    #[expect(clippy::new_ret_no_self, reason = "the two ends of one thing")]
    fn new(port: P, told: impl Fn(Turn<'_>) + 'static) -> Running<P> {
        let (ended, end) = mpsc::channel(1);
        let server = Server {
            port,
            told: Box::new(told),
            stopping: Cell::new(false),
            serving_again: Notify::new(),
            outcome: watch::Sender::new(None),
            ended,
        };
        Running {
            server: Rc::new(server),
            end,
        }
    }

    /// Ends serving if nobody objects, and says how that came out. A stop that is under way is joined; if
    /// it comes to nothing, who wants more than it did tries again.
    async fn stop(&self, wish: Wish, progress: ProgressSink) -> Result<Stopped, Failure> {
        while self.stopping.get() {
            let mut outcome = self.outcome.subscribe();
            let changed = outcome.changed().await;
            changed.expect("the sender lives as long as the server");
            let result = outcome.borrow().clone();
            match (result.expect("it has come out"), wish) {
                (Ok(end), _) => return Ok(Stopped::Joined(end, outcome)),
                (Err(failure), Wish::Polite) => return Err(failure),
                (Err(_), Wish::Force | Wish::Signal) => {}
            }
        }
        self.stopping.set(true);
        (self.told)(Turn::Stopping);
        let result = self.stop_alone(wish, progress).await;
        if result.is_err() {
            self.stopping.set(false);
            (self.told)(Turn::Serving);
            self.serving_again.notify_one();
        }
        self.outcome.send_replace(Some(result.clone()));
        result.map(Stopped::First)
    }

    async fn stop_alone(&self, wish: Wish, progress: ProgressSink) -> Result<End, Failure> {
        let (how, hold) = match (wish, self.port.claim().await) {
            (_, Ok(Claim::Free(hold))) => (Stop::Clean, Some(hold)),
            (Wish::Force, Ok(Claim::Used(users))) => {
                tracing::warn!("stopping although the device is {users}");
                (Stop::Forced, None)
            }
            (Wish::Force, Err(_)) => (Stop::Forced, None),
            (Wish::Polite, Ok(Claim::Used(users))) => {
                return Err(Failure::refused(format!(
                    "the device is in use: {users}; unmount or close it first, or stop --force (its users get \
                     errors)"
                )));
            }
            (Wish::Polite, Err(failure)) => return Err(failure),
            (Wish::Signal, Ok(Claim::Used(users))) => {
                tracing::info!("the device is {users}: leaving it for a takeover");
                (Stop::Leave, None)
            }
            (Wish::Signal, Err(failure)) => {
                tracing::warn!("{failure}: leaving the device for a takeover");
                (Stop::Leave, None)
            }
        };
        let mut how = how;
        let mut end = self.port.stop(how, hold, progress.clone()).await;
        // Who does not take no for an answer gets what can still be done.
        if let (Stop::Clean, StopEnd::StillServing(failure)) = (how, &end) {
            let instead = match wish {
                Wish::Polite => None,
                Wish::Force => Some(Stop::Forced),
                Wish::Signal => Some(Stop::Leave),
            };
            if let Some(instead) = instead {
                tracing::warn!("{failure}: ending nevertheless ({instead:?})");
                how = instead;
                end = self.port.stop(how, None, progress).await;
            }
        }
        let end = match end {
            StopEnd::Stopped => End::Stopped(how),
            StopEnd::StoppedDirty(failure) => End::StoppedDirty(how, failure),
            StopEnd::StillServing(failure) => return Err(failure),
        };
        (self.told)(Turn::Ended(&end));
        Ok(end)
    }

    /// Ends the process, once those that have joined were answered as well.
    async fn finish(&self, stopped: Stopped) {
        if let Stopped::First(end) = stopped {
            // Who does not take his answer is not waited for.
            drop(timeout(CLIENT_WAIT, self.outcome.closed()).await);
            // It has room for one, and only one stop comes this far.
            drop(self.ended.try_send(end));
        }
    }
}

/// A stop that came to its end.
enum Stopped {
    /// It was the one that did it, and ends the process.
    First(End),
    /// It joined that one, which waits until this receiver is dropped.
    Joined(
        End,
        #[expect(dead_code, reason = "it is held, not used")]
        watch::Receiver<Option<Result<End, Failure>>>,
    ),
}

impl Stopped {
    fn end(&self) -> &End {
        match self {
            Stopped::First(end) | Stopped::Joined(end, _) => end,
        }
    }
}

/// Who wants the end, and how much.
#[derive(Clone, Copy)]
enum Wish {
    /// `ujournal stop`.
    Polite,
    /// `ujournal stop --force`.
    Force,
    /// SIGTERM: the process must go, one way or the other.
    Signal,
}

struct Running<P> {
    server: Rc<Server<P>>,
    end: mpsc::Receiver<End>,
}

impl<P: Port + 'static> Running<P> {
    async fn run(
        mut self,
        listener: UnixListener,
        mut terminate: mpsc::Receiver<&'static str>,
    ) -> End {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let watched = Rc::clone(&self.server);
        let mut watch = pin!(watched.port.watch());
        loop {
            let server = Rc::clone(&self.server);
            let accepted = async {
                let place = Arc::clone(&places)
                    .acquire_owned()
                    .await
                    .expect("it is never closed");
                (listener.accept().await, place)
            };
            tokio::select! {
                end = self.end.recv() => return end.expect("the server holds the other end"),
                // While it is being stopped, the I/O thread ends as asked: the stop says how that came out.
                failure = server.port.ended(), if !server.stopping.get() => {
                    if server.stopping.get() {
                        continue;
                    }
                    let end = End::Died(failure);
                    (server.told)(Turn::Ended(&end));
                    return end;
                }
                () = server.serving_again.notified() => {}
                never = &mut watch => match never {},
                Some(signal) = terminate.recv() => {
                    tracing::info!("{signal}: ending");
                    let server = Rc::clone(&server);
                    tokio::task::spawn_local(async move { server.stop_by_signal().await });
                }
                (connection, place) = accepted => match connection {
                    Ok((stream, _)) => {
                        let server = Rc::clone(&server);
                        tokio::task::spawn_local(async move {
                            server.converse(stream).await;
                            drop(place);
                        });
                    }
                    Err(error) => {
                        tracing::warn!("control socket: cannot accept: {error}");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                },
            }
        }
    }
}

impl<P: Port + 'static> Server<P> {
    async fn stop_by_signal(&self) {
        let (progress, mut reports) = ProgressSink::channel();
        let log = async {
            let mut last = None;
            while let Some(progress) = reports.recv().await {
                // A line for each tenth is enough for a log.
                let tenth = progress
                    .permille()
                    .map(|permille| (progress.stage, permille / 100));
                if tenth != last {
                    tracing::info!("{}", progress.line(None));
                    last = tenth;
                }
            }
        };
        match tokio::join!(self.stop(Wish::Signal, progress), log).0 {
            Ok(stopped) => self.finish(stopped).await,
            Err(failure) => tracing::error!("cannot end: {failure}"),
        }
    }

    /// Answers requests until the other side ends or breaks the rules.
    async fn converse(&self, stream: UnixStream) {
        let (reader, mut writer) = stream.into_split();
        let mut reader = BufReader::new(reader);
        while let Some(read) = next_request(&mut reader).await {
            let reply = match read {
                Err(failure) => {
                    // What follows on this connection is no longer to be made sense of.
                    if write(&mut writer, &Reply::Error(failure)).await.is_ok() {
                        drain(reader).await;
                    }
                    return;
                }
                Ok(Request::Status) => match self.port.status().await {
                    Ok(mut status) => {
                        if self.stopping.get() {
                            status.warnings.push("it is being stopped".to_owned());
                        }
                        Reply::Status(Box::new(status))
                    }
                    Err(failure) => Reply::Error(failure),
                },
                Ok(Request::Sync) => {
                    let (progress, reports) = ProgressSink::channel();
                    match tell(&mut writer, reports, self.port.sync(progress)).await {
                        Ok(()) => Reply::Done {},
                        Err(failure) => Reply::Error(failure),
                    }
                }
                Ok(Request::Stop { force }) => {
                    let wish = if force { Wish::Force } else { Wish::Polite };
                    let (progress, reports) = ProgressSink::channel();
                    match tell(&mut writer, reports, self.stop(wish, progress)).await {
                        Err(failure) => Reply::Error(failure),
                        Ok(stopped) => {
                            let reply = match stopped.end() {
                                End::Stopped(_) => Reply::Done {},
                                End::StoppedDirty(_, failure) | End::Died(failure) => {
                                    Reply::Error(failure.clone())
                                }
                            };
                            // The array has ended whether the other side still listens or not.
                            drop(write(&mut writer, &reply).await);
                            self.finish(stopped).await;
                            return;
                        }
                    }
                }
            };
            if write(&mut writer, &reply).await.is_err() {
                return;
            }
        }
    }
}

/// Does `work` and tells how far it is. It goes on although the other side may have gone.
async fn tell<T>(
    writer: &mut OwnedWriteHalf,
    mut reports: mpsc::Receiver<Progress>,
    work: impl Future<Output = T>,
) -> T {
    tokio::pin!(work);
    let mut heard = true;
    loop {
        tokio::select! {
            result = &mut work => return result,
            Some(progress) = reports.recv() => {
                // Writing may wait for the other side: the work must not.
                if heard {
                    let message = Reply::Progress(progress);
                    let write = write(writer, &message);
                    tokio::pin!(write);
                    tokio::select! {
                        result = &mut work => {
                            drop(write.await);
                            return result;
                        }
                        written = &mut write => heard = written.is_ok(),
                    }
                }
            }
        }
    }
}

/// The next request; `None` when the other side has ended or says nothing for too long.
async fn next_request(reader: &mut BufReader<OwnedReadHalf>) -> Option<Result<Request, Failure>> {
    let mut text = Vec::new();
    let limit = u64::try_from(REQUEST_BYTES_MAX).expect("it is small");
    let mut limited = reader.take(limit);
    let read = timeout(CLIENT_WAIT, limited.read_until(b'\n', &mut text)).await;
    match read {
        Err(_) | Ok(Err(_) | Ok(0)) => None,
        Ok(Ok(_)) if text.last() != Some(&b'\n') && text.len() >= REQUEST_BYTES_MAX => {
            Some(Err(Failure::failed(format!(
                "control socket: expected a request of at most {REQUEST_BYTES_MAX} bytes, found a longer one"
            ))))
        }
        Ok(Ok(_)) => Some(parse_request(&text)),
    }
}

async fn write(writer: &mut OwnedWriteHalf, reply: &Reply) -> io::Result<()> {
    match timeout(CLIENT_WAIT, writer.write_all(&line(reply))).await {
        Ok(result) => result,
        Err(elapsed) => Err(elapsed.into()),
    }
}

/// Reads on for a while: a socket that is closed with something unread takes our answer with it.
async fn drain(reader: BufReader<OwnedReadHalf>) {
    let mut rest = reader.take(DRAIN_BYTES_MAX);
    let all = async {
        let mut buffer = [0_u8; 4096];
        while matches!(rest.read(&mut buffer).await, Ok(1..)) {}
    };
    drop(timeout(Duration::from_secs(1), all).await);
}
