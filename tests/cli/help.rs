//! The help is complete and says what it should.

use super::call;

const COMMANDS: [(&str, &[&str]); 9] = [
    ("label", &["<CONFIG>", "--force"]),
    (
        "start",
        &[
            "<CONFIG>",
            "--foreground",
            "--wait <TIME>",
            "--recover <HOW>",
            "--new-journal",
            "--force-lose-journal",
            "--force-partial-ro",
            "--clear-error",
        ],
    ),
    ("stop", &["<NAME>", "--force"]),
    ("sync", &["<NAME>"]),
    ("status", &["[NAME]", "--json"]),
    ("list", &["--json"]),
    ("dump", &["<PATH>", "--json"]),
    ("check", &["<CONFIG>", "--json"]),
    ("clear", &["<CONFIG>", "--force"]),
];

#[test]
fn help_names_every_command_and_every_exit_code() {
    for flag in ["--help", "-h"] {
        let help = call(&[flag]);
        assert_eq!((help.code, help.stderr.as_str()), (0, ""));
        for (command, _) in COMMANDS {
            assert!(
                help.stdout.contains(&format!("\n  {command} ")),
                "{command}: {}",
                help.stdout
            );
        }
        for code in 0..=4 {
            assert!(
                help.stdout.contains(&format!("\n  {code}  ")),
                "{code}: {}",
                help.stdout
            );
        }
    }
}

#[test]
fn help_of_each_command_names_every_option_and_shows_an_example() {
    for (command, options) in COMMANDS {
        let help = call(&[command, "--help"]);
        assert_eq!((help.code, help.stderr.as_str()), (0, ""));
        for option in options {
            assert!(
                help.stdout.contains(option),
                "{command} {option}: {}",
                help.stdout
            );
        }
        let (_, examples) = help.stdout.split_once("Example").expect(command);
        assert!(
            examples.contains(&format!("ujournal {command}")),
            "{}",
            help.stdout
        );
    }
}

#[test]
fn version_is_that_of_the_crate() {
    let version = call(&["--version"]);
    assert_eq!(
        (version.code, version.stdout),
        (0, format!("ujournal {}\n", env!("CARGO_PKG_VERSION")))
    );
}
