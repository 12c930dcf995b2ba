//! Goal: the command line keeps its contract: exit codes, one sentence on stderr, results on stdout.
//! Method: the built program as a black box. What needs a kernel with ublk is tested elsewhere; here is
//! all that a machine without it can show.

mod configs;
mod help;
mod machine;
mod offline;
mod usage;

use assert_cmd::Command;
use std::path::{Path, PathBuf};

/// The program, without what the caller's environment could change.
fn ujournal() -> Command {
    let mut command = Command::cargo_bin("ujournal").expect("the program is built");
    command.env_clear().env("LC_ALL", "C");
    command
}

/// How one call came out.
struct Outcome {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Outcome {
    fn of(command: &mut Command) -> Outcome {
        let output = command.output().expect("it runs");
        Outcome {
            code: output.status.code().expect("it ends by itself"),
            stdout: String::from_utf8(output.stdout).expect("text"),
            stderr: String::from_utf8(output.stderr).expect("text"),
        }
    }

    /// It failed with `code` and said exactly `sentence`, on stderr alone.
    #[track_caller]
    fn assert_failed(&self, code: i32, sentence: &str) {
        let rest = self.failure(code);
        assert_eq!(rest, sentence);
    }

    /// The one sentence that it failed with.
    #[track_caller]
    fn failure(&self, code: i32) -> &str {
        assert_eq!(
            (self.code, self.stdout.as_str()),
            (code, ""),
            "{}",
            self.stderr
        );
        let sentence = self
            .stderr
            .strip_prefix("ujournal: ")
            .expect("the name of the program first");
        let sentence = sentence.strip_suffix('\n').expect("a whole line");
        assert!(!sentence.contains('\n'), "one sentence: {sentence}");
        sentence
    }
}

/// Calls the program with `arguments`.
fn call(arguments: &[&str]) -> Outcome {
    Outcome::of(ujournal().args(arguments))
}

/// A folder with a good configuration of three files that are there, and its path.
fn try_out() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("vol0.toml");
    let text = "name = \"vol0-cli-test\"\n[data]\nmembers = [\"member0\", \"member1\"]\n[journal]\ndevice = \"journal\"\n";
    std::fs::write(&config, text).expect("written");
    for part in ["member0", "member1", "journal"] {
        let file = std::fs::File::create(folder.path().join(part)).expect("created");
        file.set_len(64 << 20).expect("sized");
    }
    (folder, config)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of plain letters")
}
