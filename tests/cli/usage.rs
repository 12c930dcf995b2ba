//! Wrong usage: exit code 2 and a sentence that ends with where to read on.

use super::{call, text, try_out};

#[test]
fn wrong_usage_is_one_sentence_with_a_pointer_to_the_help() {
    for (arguments, sentence) in [
        (&[][..], "expected a command: see `ujournal --help`"),
        (
            &["strat"],
            "unrecognized subcommand 'strat'; did you mean 'start'?: see `ujournal --help`",
        ),
        (
            &["help", "strat"],
            "unrecognized subcommand 'strat'; did you mean 'start'?: see `ujournal --help`",
        ),
        (
            &["create", "x"],
            "unrecognized subcommand 'create'; did you mean 'label'?: see `ujournal --help`",
        ),
        (
            &["nothing-like-it"],
            "unrecognized subcommand 'nothing-like-it': see `ujournal --help`",
        ),
        // What gives up data is never put into anybody's mouth.
        (
            &["start", "--force", "x"],
            "unexpected argument '--force' found: see `ujournal start --help`",
        ),
        (
            &["label"],
            "the following required arguments were not provided: <CONFIG>: see `ujournal label --help`",
        ),
        (
            &["label", "--forse", "x"],
            "unexpected argument '--forse' found; did you mean '--force'?: see `ujournal label --help`",
        ),
        (
            &["label", "a", "b"],
            "unexpected argument 'b' found: see `ujournal label --help`",
        ),
        (
            &["stop"],
            "the following required arguments were not provided: <NAME>: see `ujournal stop --help`",
        ),
        (
            &["stop", "/dev/ujournal/vol0"],
            "invalid value '/dev/ujournal/vol0' for '<NAME>': expected a name of 1 to 32 characters a-z, 0-9, _ and -, \
             the first a letter or a digit: see `ujournal stop --help`",
        ),
        (
            &["sync", "Vol0"],
            "invalid value 'Vol0' for '<NAME>': expected a name of 1 to 32 characters a-z, 0-9, _ and -, \
             the first a letter or a digit: see `ujournal sync --help`",
        ),
        (
            &["stop", "vol0.toml"],
            "invalid value 'vol0.toml' for '<NAME>': this is a configuration, expected the array's name, which stands \
             in it: see `ujournal stop --help`",
        ),
        (
            &["start", "--wait", "30", "x"],
            "invalid value '30' for '--wait <TIME>': expected a time up to 1day with its unit, like 30s or 5m: see \
             `ujournal start --help`",
        ),
        (
            &["start", "--recover=rw", "x"],
            "invalid value 'rw' for '--recover <HOW>' [possible values: ro, truncate]: \
             see `ujournal start --help`",
        ),
        (
            &["list", "vol0"],
            "unexpected argument 'vol0' found: see `ujournal list --help`",
        ),
        (
            &["list", "--json", "--json"],
            "the argument '--json' cannot be used multiple times: see `ujournal list --help`",
        ),
        (
            &["sync", "vol0", "--json"],
            "unexpected argument '--json' found: see `ujournal sync --help`",
        ),
    ] {
        call(arguments).assert_failed(2, sentence);
    }
}

#[test]
fn help_is_had_in_both_ways() {
    for command in [
        "label", "start", "stop", "sync", "status", "list", "dump", "check", "clear",
    ] {
        let asked = call(&["help", command]);
        assert!(asked.stdout.contains(&format!("Usage: ujournal {command}")));
        assert_eq!((asked.code, asked.stdout), {
            let option = call(&[command, "--help"]);
            (option.code, option.stdout)
        });
    }
}

#[test]
fn a_choice_of_start_that_is_not_built_is_refused_and_named() {
    let (_folder, config) = try_out();
    let config = text(&config);
    for option in [
        "--recover=ro",
        "--recover=truncate",
        "--new-journal",
        "--force-lose-journal",
        "--force-partial-ro",
        "--clear-error",
    ] {
        if !ujournal::cli::START_CHOICES.contains(&option) {
            call(&["start", option, config]).assert_failed(
                2,
                &format!("start {option}: this version cannot do that yet; nothing was touched"),
            );
        }
    }
}

#[test]
fn a_result_that_nobody_takes_is_a_failure() {
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .expect("opened");
    let status = std::process::Command::new(assert_cmd::cargo::cargo_bin("ujournal"))
        .arg("--help")
        .stdout(full)
        .output()
        .expect("it runs");
    assert_eq!(status.status.code(), Some(1));
    let stderr = String::from_utf8(status.stderr).expect("text");
    assert_eq!(
        stderr,
        "ujournal: cannot write the result: No space left on device (os error 28)\n"
    );

    // A reader that has gone is nobody's mistake: silence, but no success either.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let status = std::process::Command::new(assert_cmd::cargo::cargo_bin("ujournal"))
        .arg("--help")
        .stdout(writer)
        .output()
        .expect("it runs");
    assert_eq!(
        (status.status.code(), status.stderr.as_slice()),
        (Some(1), &b""[..])
    );
}
