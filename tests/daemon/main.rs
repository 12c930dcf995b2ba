//! Goal: a start in the background comes back with the device or with the daemon's own words, the process
//! that stays is set apart as it must be, and its end leaves nothing behind.
//! Method: this program executes itself as `ujournal start` does; the process that stays is the real
//! one, with an array that has no disks. It needs root, for mounts and locked memory; without root it
//! tests that this is what it says.
//!
//! No test harness: the process that is executed must be ours from its first step on.

use rustix::process::{Pid, Signal, getpid, kill_process};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};
use ujournal::config::{ArrayName, Config};
use ujournal::control::client::{Client, Force};
use ujournal::control::in_use::{Claim, DeviceHold};
use ujournal::control::port::{Port, Stop, StopEnd};
use ujournal::control::progress::{Progress, ProgressSink, Stage};
use ujournal::control::run_dir::RunDir;
use ujournal::control::status::{
    DeviceStatus, ErrorCounts, Facts, Live, MediaStatus, Recovery, ReplayStatus, RequestsStatus,
    StartKind, State, Status,
};
use ujournal::daemon::ready::{Ready, Started};
use ujournal::daemon::{self, Up, spawn};
use ujournal::kernel::Kernel;
use ujournal::outcome::{Exit, Failure};
use ujournal::units::{Epoch, Seq};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if spawn::is_daemon() {
        return stay(&arguments[0], Path::new(&arguments[1]));
    }
    let checks: [(&str, Check); 10] = [
        (
            "a_start_comes_back_with_the_device_and_leaves_a_process_that_is_set_apart",
            set_apart,
        ),
        ("a_stop_leaves_nothing_but_the_log", stop),
        ("sigterm_stops_what_nobody_uses", sigterm_when_free),
        ("sigterm_leaves_what_somebody_uses", sigterm_when_used),
        (
            "a_failure_comes_back_with_its_exit_code_and_sentence",
            failure,
        ),
        ("a_panic_comes_back_as_the_last_line_of_the_log", panic),
        ("an_interrupted_wait_ends_the_start", interrupted),
        (
            "a_second_start_is_refused_with_the_pid_of_the_first",
            second_start,
        ),
        ("after_sigkill_the_next_start_takes_the_place_over", sigkill),
        (
            "a_daemon_whose_socket_is_gone_is_no_start_that_never_ends",
            lost_socket,
        ),
    ];
    if !rustix::process::geteuid().is_root() {
        without_root(&Place::new());
        println!(
            "without root: tested that a start says that it needs it, and not {} checks",
            checks.len()
        );
        return ExitCode::SUCCESS;
    }
    for (name, check) in checks {
        // A panic ends the program with its message and a failing exit code.
        check(&Place::new());
        println!("test {name} ... ok");
    }
    ExitCode::SUCCESS
}

type Check = fn(&Place);

/// The daemon. `manner` says how its array behaves.
fn stay(manner: &str, folder: &Path) -> ExitCode {
    let pipe = spawn::detach().expect("detached");
    let ours = pipe.try_clone().expect("a second end");
    let text = "name = \"vol0\"\ndata.members = [\"/m\"]\njournal.device = \"/j\"\n";
    let config = Config::parse(Path::new("vol0.toml"), text, folder).expect("good");
    let place = Place {
        folder: folder.to_owned(),
        _own: None,
    };
    let result = daemon::run(&config, &place.run(), Ready::Pipe(ours), |progress| {
        bring_up(manner, &place, progress)
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            Ready::failed(pipe, &failure);
            failure.exit.into()
        }
    }
}

fn bring_up(manner: &str, place: &Place, progress: &ProgressSink) -> Result<Up<Array>, Failure> {
    for done in 0..=3 {
        progress.report(Progress::new(Stage::Scan, done, 3));
        std::thread::sleep(Duration::from_millis(20));
    }
    match manner {
        "refused" => return Err(Failure::refused("/dev/sdb: is mounted on /mnt")),
        "panic" => panic!("an invariant is broken"),
        "hang" => std::thread::sleep(Duration::from_secs(60)),
        _ => {}
    }
    File::create(place.block()).expect("in the place of a device");
    let recovery = Recovery {
        array: "vol0".to_owned(),
        epoch: 1,
        kind: StartKind::Clean,
        durable_seq: "0.0".to_owned(),
        kept_seq: "0.0".to_owned(),
        records_replayed: 0,
        records_dropped: 0,
        dropped_because: None,
        ms: 80,
    };
    let facts = Facts {
        name: "vol0".to_owned(),
        uuid: uuid::Uuid::nil(),
        epoch: Epoch(1),
        started: SystemTime::now(),
        device: DeviceStatus {
            block: place.block(),
            link: place.link(),
            size: 1 << 30,
            block_size: 512,
        },
        parts: Vec::new(),
        journal_size: 1 << 30,
        extents_limit: 4096,
        window_size: 16 << 20,
        recovery: Some(recovery),
        differs: Vec::new(),
    };
    let port = Array {
        facts: facts.clone(),
        used: manner == "used",
    };
    Ok(Up { port, facts })
}

/// An array without disks.
struct Array {
    facts: Facts,
    used: bool,
}

impl Port for Array {
    async fn status(&self) -> Result<Status, Failure> {
        let live = Live {
            state: State::Dirty,
            reason: None,
            journal_used: 0,
            oldest: None,
            last_seq: Seq::NONE,
            durable_seq: Seq::NONE,
            tail_seq: Seq::NONE,
            extents: 0,
            window_used: 0,
            replay: ReplayStatus::default(),
            requests: RequestsStatus::default(),
            media: MediaStatus::default(),
            errors: ErrorCounts::default(),
            stalls: 0,
            stalled: Vec::new(),
        };
        Ok(Status::new(&self.facts, live))
    }

    async fn sync(&self, _progress: ProgressSink) -> Result<(), Failure> {
        Ok(())
    }

    async fn stop(&self, how: Stop, _hold: Option<DeviceHold>, _progress: ProgressSink) -> StopEnd {
        if how != Stop::Leave {
            fs::remove_file(&self.facts.device.block).expect("it is there");
        }
        StopEnd::Stopped
    }

    async fn ended(&self) -> Failure {
        std::future::pending().await
    }

    async fn claim(&self) -> Result<Claim, Failure> {
        if self.used {
            return Ok(Claim::Used("mounted on /mnt".to_owned()));
        }
        let held = File::open("/dev/null").map_err(|error| Failure::failed(error.to_string()))?;
        Ok(Claim::Free(DeviceHold::of(held)))
    }
}

/// A folder for everything that a daemon leaves about.
struct Place {
    folder: PathBuf,
    _own: Option<tempfile::TempDir>,
}

impl Place {
    fn new() -> Place {
        let own = tempfile::tempdir().expect("a folder");
        Place {
            folder: own.path().to_owned(),
            _own: Some(own),
        }
    }

    fn run(&self) -> RunDir {
        RunDir::at(&self.folder.join("run"))
    }

    fn block(&self) -> PathBuf {
        self.folder.join("ublkb0")
    }

    fn link(&self) -> PathBuf {
        self.folder.join("dev/vol0")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.run().log(&name())).expect("a log")
    }

    /// Starts an array that behaves in this manner.
    fn start(&self, manner: &str) -> Result<Started, Failure> {
        let arguments = [OsString::from(manner), self.folder.clone().into()];
        spawn::start(&arguments, &self.run().log(&name()), &mut |_| {})
    }

    /// The pid of the process that stays.
    fn daemon(&self) -> Pid {
        self.run()
            .daemon(&name())
            .and_then(|daemon| Pid::from_raw(i32::try_from(daemon.pid).ok()?))
            .expect("a daemon")
    }

    fn stop(&self) {
        Client::connect(&self.run(), &name())
            .expect("connected")
            .stop(Force::No, &mut |_| {})
            .expect("stopped");
    }

    /// What lies about, without the folder's own folders.
    fn left(&self) -> BTreeSet<String> {
        let names = |folder: &Path| -> Vec<String> {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries
                .map(|entry| entry.file_name().into_string().expect("letters"))
                .collect()
        };
        [
            &self.folder,
            &self.folder.join("run"),
            &self.folder.join("dev"),
        ]
        .into_iter()
        .flat_map(|folder| names(folder))
        .filter(|name| name != "run" && name != "dev")
        .collect()
    }

    fn assert_left(&self, expected: &[&str]) {
        let expected: BTreeSet<String> = expected.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(self.left(), expected);
    }
}

fn name() -> ArrayName {
    "vol0".parse().expect("a name")
}

/// Waits until the process is gone: it is no child of ours, or a zombie of one that we started.
fn wait_for_end(pid: Pid) {
    let begun = Instant::now();
    let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
    while fs::read_to_string(&path).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(begun.elapsed() < Duration::from_secs(20), "it has ended");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn without_root(place: &Place) {
    let failure = place.start("free").expect_err("it needs root");
    assert_eq!(failure.exit, Exit::Failed);
    assert!(failure.message.contains("mount namespace"), "{failure}");
}

fn set_apart(place: &Place) {
    // Something that a careless caller left open for its children.
    let lock = File::create(place.folder.join("callers-lock")).expect("created");
    rustix::io::fcntl_setfd(&lock, rustix::io::FdFlags::empty()).expect("set");

    let mut stages = Vec::new();
    let arguments = [OsString::from("free"), place.folder.clone().into()];
    let log = place.run().log(&name());
    let started = spawn::start(&arguments, &log, &mut |progress| {
        stages.push(progress.stage);
    })
    .expect("started");
    assert_eq!(
        started,
        Started {
            block: place.block(),
            link: place.link()
        }
    );
    assert!(stages.contains(&Stage::Scan), "{stages:?}");
    assert_eq!(fs::read_link(place.link()).expect("a link"), place.block());

    let pid = place.daemon();
    let proc = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
    let of = |path: &str| fs::read_link(proc.join(path)).expect(path);
    let ours = |path: &str| fs::read_link(Path::new("/proc/self").join(path)).expect(path);
    assert_eq!(
        of("ns/mnt") != ours("ns/mnt"),
        Kernel::running().mounts_are_shared(),
        "mounts of its own, where they can follow ours"
    );
    assert_eq!(of("cwd"), Path::new("/"));
    let comm = fs::read_to_string(proc.join("comm")).expect("comm");
    assert_eq!(comm, "ujournal\n", "a name to be found by");
    assert_eq!(
        rustix::process::getsid(Some(pid)).expect("a session"),
        pid,
        "a session of its own"
    );
    // `started` is told a moment before stderr is let go of.
    let begun = Instant::now();
    while of("fd/2") != Path::new("/dev/null") && begun.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(1));
    }
    for fd in ["fd/0", "fd/1", "fd/2"] {
        assert_eq!(of(fd), Path::new("/dev/null"), "{fd}");
    }
    let identity = |found: &fs::Metadata| (found.dev(), found.ino());
    let callers = identity(&lock.metadata().expect("metadata"));
    for fd in fs::read_dir(proc.join("fd")).expect("descriptors") {
        let found = fs::metadata(fd.expect("an entry").path());
        assert!(
            !found.is_ok_and(|found| identity(&found) == callers),
            "the caller's lock is not kept"
        );
    }
    let status = fs::read_to_string(proc.join("status")).expect("status");
    let locked = status
        .lines()
        .find_map(|line| line.strip_prefix("VmLck:"))
        .expect("VmLck");
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .expect("VmRSS");
    let kib = |text: &str| {
        text.trim()
            .trim_end_matches(" kB")
            .parse::<u64>()
            .expect("a number")
    };
    assert!(kib(locked) > 0, "memory is locked");
    println!(
        "  locked {} KiB, resident {} KiB",
        kib(locked),
        kib(resident)
    );
    assert!(
        place
            .log()
            .contains("start {\"array\":\"vol0\",\"epoch\":1,\"kind\":\"clean\""),
        "{}",
        place.log()
    );

    place.stop();
    fs::remove_file(place.folder.join("callers-lock")).expect("removed");
    place.assert_left(&["vol0.lock", "vol0.log"]);
}

fn stop(place: &Place) {
    place.start("free").expect("started");
    let pid = place.daemon();
    place.assert_left(&[
        "ublkb0",
        "vol0",
        "vol0.device",
        "vol0.lock",
        "vol0.log",
        "vol0.sock",
    ]);
    assert_eq!(
        Client::connect(&place.run(), &name())
            .expect("connected")
            .status()
            .expect("answered")
            .name,
        "vol0"
    );
    place.stop();
    assert!(
        fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))
            .is_ok_and(|stat| stat.contains(") Z "))
            || !Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists(),
        "it is gone when stop returns"
    );
    assert_eq!(place.run().daemon(&name()), None);
    place.assert_left(&["vol0.lock", "vol0.log"]);
    place.start("free").expect("and may start again");
    place.stop();
    place.assert_left(&["vol0.lock", "vol0.log", "vol0.log.old"]);
}

fn sigterm_when_free(place: &Place) {
    place.start("free").expect("started");
    let pid = place.daemon();
    kill_process(pid, Signal::TERM).expect("sent");
    wait_for_end(pid);
    place.assert_left(&["vol0.lock", "vol0.log"]);
    assert!(
        place.log().contains("ended as asked (Clean)"),
        "{}",
        place.log()
    );
}

fn sigterm_when_used(place: &Place) {
    place.start("used").expect("started");
    let pid = place.daemon();
    kill_process(pid, Signal::TERM).expect("sent");
    wait_for_end(pid);
    // The device is left, and its link with it, and what it is known by.
    place.assert_left(&["ublkb0", "vol0", "vol0.device", "vol0.lock", "vol0.log"]);
    let record = place.run().device(&name()).expect("written down");
    assert_eq!(
        (record.uuid, record.device.block, record.device.link),
        (uuid::Uuid::nil(), place.block(), place.link())
    );
    assert!(
        place.log().contains("ended as asked (Leave)"),
        "{}",
        place.log()
    );
}

fn failure(place: &Place) {
    let failure = place.start("refused").expect_err("refused");
    assert_eq!(failure, Failure::refused("/dev/sdb: is mounted on /mnt"));
    place.assert_left(&["vol0.lock", "vol0.log"]);
    assert!(place.log().contains("/dev/sdb: is mounted on /mnt"));
}

fn panic(place: &Place) {
    let failure = place.start("panic").expect_err("it died");
    assert_eq!(failure.exit, Exit::Failed);
    assert!(
        failure
            .message
            .starts_with("the daemon ended while it was starting (signal 6); its log is "),
        "{failure}"
    );
    assert!(
        failure.message.ends_with(
            ": an invariant is broken; this is a bug in ujournal, the next start recovers"
        ),
        "{failure}"
    );
    assert!(
        place
            .log()
            .contains("PANIC panicked at tests/daemon/main.rs"),
        "{}",
        place.log()
    );
}

fn interrupted(place: &Place) {
    let begun = Instant::now();
    let waiting = std::thread::spawn(|| {
        std::thread::sleep(Duration::from_millis(500));
        kill_process(getpid(), Signal::INT).expect("sent");
    });
    let failure = place.start("hang").expect_err("interrupted");
    waiting.join().expect("no panic");
    assert!(begun.elapsed() < Duration::from_secs(30));
    assert!(
        failure
            .message
            .starts_with("the daemon ended while it was starting (signal 15)"),
        "{failure}"
    );
    place.assert_left(&["vol0.lock", "vol0.log"]);
}

fn second_start(place: &Place) {
    place.start("free").expect("started");
    let pid = place.daemon();
    let failure = place.start("free").expect_err("refused");
    assert_eq!(
        failure,
        Failure::refused(format!(
            "array vol0 is running already (pid {})",
            pid.as_raw_nonzero()
        ))
    );
    Client::connect(&place.run(), &name())
        .expect("connected")
        .status()
        .expect("the first still answers");
    place.stop();
}

fn sigkill(place: &Place) {
    place.start("free").expect("started");
    let pid = place.daemon();
    kill_process(pid, Signal::KILL).expect("sent");
    // At once: the killed one may still be on its way out.
    place.start("free").expect("started");
    assert_ne!(place.daemon(), pid);
    place.stop();
    place.assert_left(&["vol0.lock", "vol0.log", "vol0.log.old"]);
}

fn lost_socket(place: &Place) {
    place.start("free").expect("started");
    let pid = place.daemon();
    fs::remove_file(place.run().socket(&name())).expect("there");
    let failure = Client::connect(&place.run(), &name()).expect_err("nobody listens there");
    let number = pid.as_raw_nonzero();
    assert!(
        failure.message.starts_with(&format!(
            "array vol0 is running (pid {number}), but nobody listens at "
        )) && failure
            .message
            .contains(&format!("end it with `kill {number}`")),
        "{failure}"
    );
    // The remedy does what it says.
    kill_process(pid, Signal::TERM).expect("sent");
    wait_for_end(pid);
    place.assert_left(&["vol0.lock", "vol0.log"]);
    assert!(
        place.log().contains("ended as asked (Clean)"),
        "{}",
        place.log()
    );
}
