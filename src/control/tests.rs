//! Goal: whatever is sent over the control socket gets an answer, the right one; a stop leaves nothing
//! behind and is refused when it must be.
//! Method: the real server and the real client over a real socket in a folder of its own. In place
//! of a ring there is a thread that takes commands as the I/O thread will.

use super::client::{Client, Force};
use super::in_use::{Claim, DeviceHold};
use super::port::{Command, Port, RingCommands, RingPort, Stop, StopEnd, ring_commands};
use super::progress::{Progress, ProgressSink, Stage};
use super::protocol::{REQUEST_BYTES_MAX, Reply};
use super::run_dir::{Phase, RunDir};
use super::server::{End, Turn, serve};
use super::status::tests::{facts, live};
use super::status::{Facts, Status};
use crate::config::ArrayName;
use crate::outcome::{Exit, Failure};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc;

/// How the array behaves.
#[derive(Clone, Debug, Default)]
struct Manner {
    /// Who has the device open.
    used: Option<&'static str>,
    /// What a stop comes to, if it goes wrong, and how long that takes. The device can always be left,
    /// and taken away by force.
    stop: Option<StopEnd>,
    stop_takes: Duration,
    /// Ends when a command comes, without an answer.
    dies: bool,
    /// Keeps a sync waiting until it is stopped.
    slow: bool,
    /// The server has ended without telling the I/O thread.
    over: bool,
}

struct Array {
    port: RingPort,
    facts: Facts,
    manner: Arc<Mutex<Manner>>,
}

impl Array {
    fn manner(&self) -> Manner {
        self.manner.lock().expect("not poisoned").clone()
    }
}

impl Port for Array {
    async fn status(&self) -> Result<Status, Failure> {
        Ok(Status::new(&self.facts, self.port.live().await?))
    }

    async fn sync(&self, progress: ProgressSink) -> Result<(), Failure> {
        self.port.sync(progress).await
    }

    async fn stop(&self, how: Stop, hold: Option<DeviceHold>, progress: ProgressSink) -> StopEnd {
        assert_eq!(
            hold.is_some(),
            how == Stop::Clean,
            "a device that nobody uses is held"
        );
        let manner = self.manner();
        if how == Stop::Clean
            && let Some(end) = manner.stop
        {
            tokio::time::sleep(manner.stop_takes).await;
            return end;
        }
        match self.port.stop(how, progress).await {
            Ok(()) => StopEnd::Stopped,
            Err(failure) => StopEnd::StoppedDirty(failure),
        }
    }

    async fn ended(&self) -> Failure {
        self.port.closed().await;
        Failure::failed("the I/O thread ended")
    }

    async fn claim(&self) -> Result<Claim, Failure> {
        Ok(match self.manner().used {
            Some(users) => Claim::Used(users.to_owned()),
            None => Claim::Free(DeviceHold::of(File::open("/dev/null").expect("opened"))),
        })
    }
}

/// The thread in the place of the I/O thread: woken by unparking. Returns how it was stopped.
fn io_thread(mut commands: RingCommands, manner: &Mutex<Manner>) -> Option<Stop> {
    let mut waiting = Vec::new();
    loop {
        std::thread::park_timeout(Duration::from_millis(20));
        if manner.lock().expect("not poisoned").over {
            return None;
        }
        while let Some(command) = commands.take() {
            let manner = manner.lock().expect("not poisoned").clone();
            if manner.dies {
                return None;
            }
            match command {
                Command::Status(answer) => drop(answer.send(live())),
                Command::Sync { progress, done } if manner.slow => waiting.push((progress, done)),
                Command::Sync { progress, done } => {
                    report(&progress);
                    drop(done.send(Ok(())));
                }
                Command::Stop {
                    how,
                    progress,
                    done,
                } => {
                    report(&progress);
                    drop(done.send(Ok(())));
                    return Some(how);
                }
                Command::StopWithdrawn => unreachable!("the device can be stopped"),
            }
        }
    }
}

fn report(progress: &ProgressSink) {
    for done in 0..=3 {
        progress.report(Progress::new(Stage::Replay, done, 3));
    }
}

struct Daemon {
    _folder: tempfile::TempDir,
    run: RunDir,
    name: ArrayName,
    manner: Arc<Mutex<Manner>>,
    terminate: mpsc::Sender<&'static str>,
    server: JoinHandle<io::Result<End>>,
    io: JoinHandle<Option<Stop>>,
}

/// Starts all of it.
fn daemon(manner: Manner) -> Daemon {
    let folder = tempfile::tempdir().expect("a folder");
    let run = RunDir::at(&folder.path().join("run"));
    let name: ArrayName = "vol0".parse().expect("a name");
    run.create().expect("made");
    let lock = run.lock(&name, |_| Ok(())).expect("locked");
    let listener = run.listen(&name, &lock).expect("listens");
    let manner = Arc::new(Mutex::new(manner));
    let (commands, taken) = ring_commands();
    let io = {
        let manner = Arc::clone(&manner);
        std::thread::spawn(move || io_thread(taken, &manner))
    };
    let io_handle = io.thread().clone();
    let array_manner = Arc::clone(&manner);
    let (terminate, signals) = mpsc::channel(1);
    let socket = run.socket(&name);
    let server = std::thread::spawn(move || {
        let told = move |turn: Turn<'_>| match turn {
            Turn::Stopping => lock.tell(Phase::Stopping),
            Turn::Serving => lock.tell(Phase::Serving),
            Turn::Ended(_) => std::fs::remove_file(&socket).expect("it is there once"),
        };
        let port = RingPort::new(commands, move || io_handle.unpark());
        let array = Array {
            port,
            facts: facts(),
            manner: array_manner,
        };
        serve(listener, array, || Ok(signals), told)
    });
    Daemon {
        _folder: folder,
        run,
        name,
        manner,
        terminate,
        server,
        io,
    }
}

impl Daemon {
    fn client(&self) -> Client {
        Client::connect(&self.run, &self.name).expect("connected")
    }

    fn raw(&self) -> UnixStream {
        let stream = self.run.connect(&self.name).expect("connected");
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("set");
        stream
    }

    fn stop(&self) -> Result<(), Failure> {
        self.client().stop(Force::No, &mut |_| {})
    }

    /// Waits for the end; returns how the server and the I/O thread came to it.
    fn end(self) -> (End, Option<Stop>) {
        assert!(
            !self.run.socket(&self.name).exists(),
            "the socket is gone before anybody is told"
        );
        drop(self.terminate);
        let end = self.server.join().expect("no panic").expect("served");
        self.manner.lock().expect("not poisoned").over |= matches!(end, End::StoppedDirty(..));
        (end, self.io.join().expect("no panic"))
    }
}

#[test]
fn status_sync_and_stop_are_answered_and_nothing_is_left() {
    let daemon = daemon(Manner::default());
    let mut client = daemon.client();
    assert_eq!(
        client.status().expect("answered"),
        Status::new(&facts(), live())
    );

    let mut reports = Vec::new();
    client
        .sync(&mut |progress| reports.push(progress.done))
        .expect("synced");
    assert!(reports.is_sorted(), "{reports:?}");
    client.status().expect("the same connection still answers");

    daemon.stop().expect("stopped");
    assert_eq!(daemon.end(), (End::Stopped(Stop::Clean), Some(Stop::Clean)));
}

#[test]
fn a_stop_while_in_use_is_refused_and_a_forced_one_is_not() {
    let daemon = daemon(Manner {
        used: Some("mounted on /mnt"),
        ..Manner::default()
    });
    assert_eq!(
        daemon.stop().expect_err("refused"),
        Failure::refused(
            "array vol0: the device is in use: mounted on /mnt; unmount or close it first, or stop --force (its \
             users get errors)"
        )
    );
    daemon.client().status().expect("it serves as before");
    daemon
        .client()
        .stop(Force::Yes, &mut |_| {})
        .expect("stopped");
    assert_eq!(
        daemon.end(),
        (End::Stopped(Stop::Forced), Some(Stop::Forced))
    );
}

#[test]
fn a_signal_stops_cleanly_or_leaves_the_device_that_is_in_use() {
    for (used, how) in [
        (None, Stop::Clean),
        (Some("open by dd (pid 12)"), Stop::Leave),
    ] {
        let daemon = daemon(Manner {
            used,
            ..Manner::default()
        });
        daemon.terminate.blocking_send("SIGTERM").expect("sent");
        let socket = daemon.run.socket(&daemon.name);
        while socket.exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(daemon.end(), (End::Stopped(how), Some(how)));
    }
}

#[test]
fn a_signal_leaves_the_device_where_a_stop_comes_to_nothing() {
    for asked_before in [false, true] {
        let daemon = daemon(Manner {
            stop: Some(StopEnd::StillServing(Failure::failed("a member is ill"))),
            stop_takes: Duration::from_millis(200),
            ..Manner::default()
        });
        std::thread::scope(|scope| {
            if asked_before {
                scope.spawn(|| daemon.stop().expect_err("a member is ill"));
                std::thread::sleep(Duration::from_millis(50));
            }
            daemon.terminate.blocking_send("SIGTERM").expect("sent");
        });
        let socket = daemon.run.socket(&daemon.name);
        while socket.exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(
            daemon.end(),
            (End::Stopped(Stop::Leave), Some(Stop::Leave)),
            "asked to stop before: {asked_before}"
        );
    }
}

#[test]
fn a_stop_that_could_not_begin_leaves_it_serving() {
    let failure = Failure::failed("/dev/sdb: does not answer");
    let daemon = daemon(Manner {
        stop: Some(StopEnd::StillServing(failure)),
        ..Manner::default()
    });
    for _ in 0..2 {
        let failure = daemon.stop().expect_err("not stopped");
        assert_eq!(failure.message, "array vol0: /dev/sdb: does not answer");
        daemon.client().status().expect("it serves as before");
    }
    // An end that nobody asked for is still noticed.
    daemon.manner.lock().expect("not poisoned").dies = true;
    drop(daemon.client().status());
    let socket = daemon.run.socket(&daemon.name);
    while socket.exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(
        daemon.end(),
        (End::Died(Failure::failed("the I/O thread ended")), None)
    );
}

#[test]
fn a_stop_may_be_tried_again() {
    let failure = Failure::failed("later");
    let daemon = daemon(Manner {
        stop: Some(StopEnd::StillServing(failure)),
        ..Manner::default()
    });
    daemon.stop().expect_err("not stopped");
    daemon.manner.lock().expect("not poisoned").stop = None;
    daemon.stop().expect("stopped");
    daemon.end();
}

#[test]
fn a_stop_that_leaves_the_array_dirty_says_so_and_ends() {
    let failure = Failure::failed("replay failed");
    let daemon = daemon(Manner {
        stop: Some(StopEnd::StoppedDirty(failure.clone())),
        ..Manner::default()
    });
    let told = daemon
        .client()
        .stop(Force::Yes, &mut |_| {})
        .expect_err("told");
    assert_eq!(
        (told.exit, told.message.as_str()),
        (Exit::Failed, "array vol0: replay failed")
    );
    let (end, _) = daemon.end();
    assert_eq!(end, End::StoppedDirty(Stop::Clean, failure));
}

#[test]
fn while_a_sync_takes_its_time_others_are_answered() {
    let daemon = daemon(Manner {
        slow: true,
        ..Manner::default()
    });
    let mut waiting = daemon.client();
    let sync = std::thread::spawn(move || waiting.sync(&mut |_| {}));
    // One that asks and goes away at once.
    daemon
        .raw()
        .write_all(b"{\"op\":\"sync\"}\n")
        .expect("sent");
    for _ in 0..10 {
        daemon.client().status().expect("answered");
    }
    assert!(!sync.is_finished());
    daemon.stop().expect("stopped");
    // The sync did not come to its end, and is not told that it did.
    let failure = sync.join().expect("no panic").expect_err("not synced");
    assert_eq!(failure.exit, Exit::Failed);
    assert!(failure.message.starts_with("array vol0: "), "{failure}");
    daemon.end();
}

#[test]
fn an_io_thread_that_ends_ends_the_daemon_with_a_reason() {
    let daemon = daemon(Manner {
        dies: true,
        ..Manner::default()
    });
    let failure = daemon.client().status().expect_err("no answer");
    assert!(failure.message.starts_with("array vol0: "), "{failure}");
    let socket = daemon.run.socket(&daemon.name);
    while socket.exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(
        daemon.end(),
        (End::Died(Failure::failed("the I/O thread ended")), None)
    );
}

/// Sends `bytes`, ends, and returns every line of the answer.
fn answers(daemon: &Daemon, bytes: &[u8]) -> Vec<Reply> {
    let mut stream = daemon.raw();
    // The server may close while we still write.
    drop(stream.write_all(bytes));
    drop(stream.shutdown(Shutdown::Write));
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("a reply"))
        .collect()
}

#[track_caller]
fn assert_one_error(replies: &[Reply], expected: &str) {
    match replies {
        [Reply::Error(failure)] => {
            assert_eq!(failure.exit, Exit::Failed);
            assert!(failure.message.contains(expected), "{failure}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn any_bytes_are_answered_and_the_daemon_goes_on() {
    let daemon = daemon(Manner::default());
    assert_eq!(answers(&daemon, b""), []);
    for bytes in [
        &b"\n"[..],
        b"stop\n",
        b"{\"op\":\"halt\"}\n",
        b"\xff\xfe\n",
        b"{\"op\":\"status\"",
        b"\0\0\0\0\n",
    ] {
        assert_one_error(&answers(&daemon, bytes), "expected a request like");
    }
    for length in [REQUEST_BYTES_MAX, REQUEST_BYTES_MAX + 1, 300_000] {
        let long = vec![b'x'; length];
        assert_one_error(
            &answers(&daemon, &long),
            "at most 4096 bytes, found a longer one",
        );
    }
    // The longest that is allowed, with its newline.
    let mut padded = b"{\"op\":\"sync\"}".to_vec();
    padded.resize(REQUEST_BYTES_MAX - 1, b' ');
    padded.push(b'\n');
    assert_eq!(answers(&daemon, &padded).last(), Some(&Reply::Done {}));
    // After nonsense the rest of the connection is not believed.
    assert_one_error(
        &answers(&daemon, b"nonsense\n{\"op\":\"stop\",\"force\":true}\n"),
        "expected a request like",
    );
    // Two at once are answered one after the other.
    assert_eq!(
        answers(&daemon, b"{\"op\":\"status\"}\n{\"op\":\"status\"}\n").len(),
        2
    );

    proptest::proptest!(proptest::test_runner::Config::with_cases(200), |(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 1..400))| {
        for reply in answers(&daemon, &bytes) {
            proptest::prop_assert!(matches!(reply, Reply::Error(_)));
        }
    });
    // More connections than there are places, all silent, do not keep it from being stopped in time.
    let silent: Vec<UnixStream> = (0..31).map(|_| daemon.raw()).collect();
    daemon.stop().expect("stopped");
    drop(silent);
    daemon.end();
}

#[test]
fn whoever_asks_for_a_stop_while_one_is_under_way_gets_its_outcome() {
    let ill = Failure::failed("a member is ill");
    for (end, expected) in [
        (StopEnd::Stopped, Ok(())),
        (StopEnd::StoppedDirty(ill.clone()), Err(())),
        (StopEnd::StillServing(ill), Err(())),
    ] {
        let goes_on = matches!(end, StopEnd::StillServing(_));
        let daemon = daemon(Manner {
            stop: Some(end),
            stop_takes: Duration::from_millis(500),
            ..Manner::default()
        });
        let results: Vec<Result<(), Failure>> = std::thread::scope(|scope| {
            let stops: Vec<_> = (0..8).map(|_| scope.spawn(|| daemon.stop())).collect();
            std::thread::sleep(Duration::from_millis(200));
            let phase = daemon.run.daemon(&daemon.name).expect("it lives").phase;
            assert_eq!(phase, Phase::Stopping);
            let status = daemon.client().status().expect("it still answers");
            assert_eq!(status.warnings, ["it is being stopped"]);
            stops
                .into_iter()
                .map(|stop| stop.join().expect("no panic"))
                .collect()
        });
        for result in results {
            let told = result.map_err(|failure| {
                assert_eq!(failure.message, "array vol0: a member is ill");
            });
            assert_eq!(told, expected);
        }
        if goes_on {
            let phase = daemon.run.daemon(&daemon.name).expect("it lives").phase;
            assert_eq!(phase, Phase::Serving);
            daemon.manner.lock().expect("not poisoned").stop = None;
            daemon.stop().expect("stopped");
        } else {
            daemon.manner.lock().expect("not poisoned").over = true;
        }
        daemon.end();
    }
}

#[test]
fn a_forced_stop_does_not_give_up_with_the_polite_one_that_it_joined() {
    let daemon = daemon(Manner {
        stop: Some(StopEnd::StillServing(Failure::failed("a member is ill"))),
        stop_takes: Duration::from_millis(300),
        ..Manner::default()
    });
    std::thread::scope(|scope| {
        scope.spawn(|| daemon.stop().expect_err("a member is ill"));
        std::thread::sleep(Duration::from_millis(100));
        let forced = daemon.client().stop(Force::Yes, &mut |_| {});
        forced.expect("stopped");
    });
    assert_eq!(
        daemon.end(),
        (End::Stopped(Stop::Forced), Some(Stop::Forced))
    );
}

#[test]
fn an_answer_that_never_comes_is_given_up() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("built");
    let (sender, commands) = ring_commands();
    let port = RingPort::new(sender, || {});
    let failure = runtime.block_on(port.live()).expect_err("nobody answers");
    assert_eq!(
        failure.message,
        "the array's I/O thread has not answered for 10 s"
    );
    drop(commands);
}
