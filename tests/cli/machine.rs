//! What a machine lacks, and arrays that do not run: exit code 1, one sentence, the remedy.

use super::{Outcome, call, text, try_out, ujournal};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use ujournal::config::ArrayName;
use ujournal::control::run_dir::{DaemonLock, DeviceRecord, Phase, RunDir};
use ujournal::control::status::DeviceStatus;

/// Held by a test that looks at the arrays of the machine, or puts one there.
static ARRAYS: Mutex<()> = Mutex::new(());

fn arrays() -> MutexGuard<'static, ()> {
    ARRAYS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An array of this machine whose daemon is this process; gone with the value.
struct Pretended {
    run: RunDir,
    name: ArrayName,
    lock: Option<DaemonLock>,
}

impl Pretended {
    fn new(name: &str) -> Pretended {
        let run = RunDir::system();
        run.create().expect("made");
        let name: ArrayName = name.parse().expect("a name");
        let lock = run.lock(&name, |_| Ok(())).expect("locked");
        let device = DeviceStatus {
            block: "/dev/ublkb-of-nobody".into(),
            link: format!("/dev/ujournal/{name}").into(),
            size: 1 << 30,
            block_size: 512,
        };
        let uuid = uuid::Uuid::from_u128(0x1234);
        let record = DeviceRecord { uuid, device };
        run.record_device(&name, &record, &lock).expect("written");
        Pretended {
            run,
            name,
            lock: Some(lock),
        }
    }

    fn tell(&self, phase: Phase) {
        self.lock.as_ref().expect("it is held").tell(phase);
    }

    /// Its entry in the list, as JSON.
    fn listed(&self) -> Option<serde_json::Value> {
        let list = call(&["list", "--json"]);
        assert_eq!((list.code, list.stderr.as_str()), (0, ""));
        let found: Vec<serde_json::Value> = serde_json::from_str(&list.stdout).expect("JSON");
        found
            .into_iter()
            .find(|entry| entry["name"] == self.name.as_str())
    }

    /// Its line in the list, and its status.
    fn shown(&self) -> (String, Outcome) {
        let list = call(&["list"]);
        let name = self.name.as_str();
        let line = list.stdout.lines().find(|line| line.starts_with(name));
        let status = call(&["status", name]);
        (line.unwrap_or_default().to_owned(), status)
    }
}

impl Drop for Pretended {
    fn drop(&mut self) {
        for file in [
            self.run.lock_file(&self.name),
            self.run.device_file(&self.name),
            self.run.socket(&self.name),
        ] {
            drop(fs::remove_file(file));
        }
    }
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("this needs root: only root can put an array into /run/ujournal");
    }
    root
}

#[test]
fn a_daemon_that_starts_or_stops_has_a_word_of_its_own_in_list_and_status() {
    let _arrays = arrays();
    if !is_root() {
        return;
    }
    let pretended = Pretended::new("cli-test-phases");
    let (name, pid) = (pretended.name.as_str(), std::process::id());
    for (phase, state, block, sentence) in [
        (Phase::Starting, "STARTING", None, "is still starting"),
        (
            Phase::Stopping,
            "STOPPING",
            Some("/dev/ublkb-of-nobody"),
            "is being stopped",
        ),
    ] {
        pretended.tell(phase);
        let listed = pretended.listed().expect("listed");
        let (line, status) = pretended.shown();
        let words: Vec<&str> = line.split_whitespace().collect();
        let pid_word = pid.to_string();
        assert_eq!(words, [name, state, block.unwrap_or("-"), "pid", &pid_word]);
        assert_eq!(
            (&listed["state"], &listed["pid"], &listed["block"]),
            (&state.into(), &pid.into(), &block.into())
        );
        assert_eq!(listed["fill"], serde_json::Value::Null);
        assert_eq!((status.code, status.stderr.as_str()), (1, ""));
        let head = format!("{name}: {state}\n");
        assert!(status.stdout.starts_with(&head), "{}", status.stdout);
        let all = call(&["status", "--json"]);
        assert_eq!(all.code, 1, "not all answer");
        assert!(all.stdout.contains(state), "{}", all.stdout);
        for arguments in [
            &["stop", name][..],
            &["stop", "--force", name],
            &["sync", name],
        ] {
            call(arguments).assert_failed(1, &format!("array {name} {sentence} (pid {pid})"));
        }
    }
}

#[test]
fn a_daemon_whose_socket_is_gone_is_not_still_starting() {
    let _arrays = arrays();
    if !is_root() {
        return;
    }
    let pretended = Pretended::new("cli-test-lost");
    pretended.tell(Phase::Serving);
    let (name, pid) = (pretended.name.as_str(), std::process::id());
    let expected = format!(
        "array {name} is running (pid {pid}), but nobody listens at /run/ujournal/{name}.sock: end it with `kill \
         {pid}`, which loses nothing, and start it again"
    );
    for command in ["status", "stop", "sync"] {
        call(&[command, name]).assert_failed(1, &expected);
    }
    let listed = pretended.listed().expect("listed");
    assert_eq!(
        (&listed["state"], &listed["reason"]),
        (&"UNKNOWN".into(), &expected.as_str().into())
    );
}

#[test]
fn files_that_a_dead_daemon_left_are_no_array_where_its_device_is_gone() {
    let _arrays = arrays();
    if !is_root() {
        return;
    }
    let mut pretended = Pretended::new("cli-test-dead");
    pretended.tell(Phase::Serving);
    drop(std::os::unix::net::UnixListener::bind(
        pretended.run.socket(&pretended.name),
    ));
    pretended.lock = None;
    assert_eq!(pretended.listed(), None);
    let name = pretended.name.as_str();
    let expected = format!("no array {name} is running; ujournal list shows those that are");
    for arguments in [
        &["status", name][..],
        &["sync", name],
        &["stop", name],
        &["stop", "--force", name],
    ] {
        call(arguments).assert_failed(1, &expected);
    }
}

#[test]
fn a_part_that_a_running_array_holds_is_refused_with_the_name_of_the_array() {
    let _arrays = arrays();
    if !is_root() {
        return;
    }
    let (folder, config) = try_out();
    let part = folder.path().join("member1");
    let held = fs::File::options().write(true).open(&part).expect("opened");
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).expect("locked");
    // Held by a process that is no daemon.
    let pid = std::process::id();
    let nobody = call(&["label", text(&config)]);
    let sentence = nobody.failure(3);
    assert!(
        sentence.contains(&format!("is in use by process {pid} (")),
        "{sentence}"
    );

    let pretended = Pretended::new("cli-test-holder");
    pretended.tell(Phase::Serving);
    let expected = format!(
        "array cli-test-holder is running (pid {pid}) and holds {}; stop it first: ujournal stop cli-test-holder",
        part.display()
    );
    for arguments in [
        &["label"][..],
        &["label", "--force"],
        &["clear"],
        &["clear", "--force"],
    ] {
        Outcome::of(ujournal().args(arguments).arg(&config)).assert_failed(3, &expected);
    }
    let checked = call(&["check", text(&config)]);
    assert!(
        checked.code == 3 && checked.stdout.contains(&expected),
        "{}",
        checked.stdout
    );
}

#[test]
fn an_array_that_does_not_run_is_exit_code_1() {
    for command in ["stop", "sync", "status"] {
        call(&[command, "no-such-array"]).assert_failed(
            1,
            "no array no-such-array is running; ujournal list shows those that are",
        );
    }
    call(&["stop", "--force", "no-such-array"]).failure(1);
    call(&["status", "no-such-array", "--json"]).failure(1);
}

#[test]
fn lists_are_good_json_whatever_runs() {
    let _arrays = arrays();
    for arguments in [&["list", "--json"][..], &["status", "--json"]] {
        let list = call(arguments);
        assert_eq!(list.code, 0, "{}", list.stderr);
        let found: serde_json::Value = serde_json::from_str(&list.stdout).expect("JSON");
        assert!(found.is_array(), "{found}");
    }
    let list = call(&["list"]);
    assert_eq!(list.code, 0);
    assert!(
        list.stdout == "no running arrays\n" || list.stdout.starts_with("NAME"),
        "{}",
        list.stdout
    );
}

#[test]
fn start_without_a_driver_names_the_remedy_and_touches_nothing() {
    if !rustix::process::geteuid().is_root() {
        println!("as root this says what to do about the driver; here, that root is needed");
    }
    let (folder, config) = try_out();
    let state = |folder: &Path| {
        let mut parts: Vec<_> = fs::read_dir(folder)
            .expect("read")
            .map(|entry| fs::read(entry.expect("an entry").path()).expect("read"))
            .collect();
        parts.sort();
        parts
    };
    let before = state(folder.path());
    for arguments in [&["start"][..], &["start", "--foreground"]] {
        let started = Outcome::of(ujournal().args(arguments).arg(&config));
        if !rustix::process::geteuid().is_root() {
            started.assert_failed(1, "start needs root: run it with sudo");
        } else if Path::new("/dev/ublk-control").exists() {
            // With a driver the parts come next: they carry no label.
            started.failure(3);
        } else {
            let sentence = started.failure(1);
            assert!(
                sentence.starts_with("no ublk driver: /dev/ublk-control is not there"),
                "{sentence}"
            );
            assert!(
                sentence.contains("modprobe ublk_drv") && sentence.contains("Linux 6.12"),
                "{sentence}"
            );
        }
    }
    assert!(state(folder.path()) == before, "nothing was written");
}

#[test]
fn start_without_permission_names_the_remedy() {
    let (folder, config) = try_out();
    for path in [folder.path(), &config] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("opened");
    }
    // A copy where another user can reach it.
    let program = folder.path().join("ujournal");
    fs::copy(assert_cmd::cargo::cargo_bin("ujournal"), &program).expect("copied");
    let mut command = std::process::Command::new(&program);
    command.args(["start", text(&config)]);
    if rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    let output = command.output().expect("it runs");
    let stderr = String::from_utf8(output.stderr).expect("text");
    assert_eq!(
        (output.status.code(), stderr.as_str()),
        (Some(1), "ujournal: start needs root: run it with sudo\n")
    );
}
