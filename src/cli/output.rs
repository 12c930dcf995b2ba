//! The two ends of a command: results to stdout, one sentence to stderr.

use crate::outcome::{Exit, Failure};
use std::io::{self, Write};

/// A result. Whoever reads it may have gone, as `head` does: that is no mistake of anybody's, and nothing
/// is said, but the command did not do all that it was asked.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| unwritten(&error))
}

/// What it means that stdout did not take a result.
pub(super) fn unwritten(error: &io::Error) -> Failure {
    let message = if error.kind() == io::ErrorKind::BrokenPipe {
        String::new()
    } else {
        format!("cannot write the result: {error}")
    };
    Failure {
        exit: Exit::Failed,
        message,
    }
}

/// A value as JSON for people and programs.
pub(super) fn print_json<T: serde::Serialize>(value: &T) -> Result<(), Failure> {
    let mut text = serde_json::to_string_pretty(value).expect("plain data always has a JSON form");
    text.push('\n');
    print(&text)
}

/// The sentence. If stderr does not take it there is the exit code.
pub(super) fn complain(failure: &Failure) {
    if !failure.message.is_empty() {
        drop(writeln!(io::stderr().lock(), "ujournal: {failure}"));
    }
}
