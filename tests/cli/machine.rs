//! What a machine lacks, and arrays that do not run: exit code 1, one sentence, the remedy.

use super::{Outcome, call, text, try_out, ujournal};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;

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
