//! How a command ends: the exit codes, and the one sentence that goes with each of them but 0.
//!
//! Both travel: from the daemon to the command that waits for it, over the control socket and over
//! the pipe of a start. So they are plain data here, and whatever fails says which of them it is.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::process::ExitCode;

/// The exit codes, kept stable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
#[repr(u8)]
pub enum Exit {
    /// 0: done.
    Done = 0,
    /// 1: it failed at run time. Also: no ublk driver, no permission, `io_uring` off, no such running array.
    Failed = 1,
    /// 2: wrong usage or configuration, as far as the file and the command line alone show.
    Usage = 2,
    /// 3: refused by what is on or under a disk, to protect data.
    Refused = 3,
    /// 4: damage found in acknowledged data.
    Damaged = 4,
    /// 130: an interrupt ended the command, as shells say it; what it had asked for may go on.
    Interrupted = 130,
}

impl Exit {
    /// All of them, in order.
    pub const ALL: [Exit; 6] = [
        Exit::Done,
        Exit::Failed,
        Exit::Usage,
        Exit::Refused,
        Exit::Damaged,
        Exit::Interrupted,
    ];
}

impl From<Exit> for u8 {
    fn from(exit: Exit) -> u8 {
        match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Refused => 3,
            Exit::Damaged => 4,
            Exit::Interrupted => 130,
        }
    }
}

impl TryFrom<u8> for Exit {
    type Error = NotAnExit;

    fn try_from(code: u8) -> Result<Exit, NotAnExit> {
        Exit::ALL
            .into_iter()
            .find(|exit| u8::from(*exit) == code)
            .ok_or(NotAnExit(code))
    }
}

/// A number that is none of the exit codes.
#[derive(Debug, thiserror::Error)]
#[error("exit code {0}, expected 0 to 4 or 130")]
pub struct NotAnExit(u8);

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(u8::from(exit))
    }
}

/// Why a command did not do what it was asked: the exit code and the sentence.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// Never [`Exit::Done`].
    pub exit: Exit,
    /// What, where, expected and found; no full stop.
    pub message: String,
}

impl Failure {
    /// Exit code 1.
    pub fn failed(message: impl Into<String>) -> Failure {
        Failure {
            exit: Exit::Failed,
            message: message.into(),
        }
    }

    /// Exit code 2.
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure {
            exit: Exit::Usage,
            message: message.into(),
        }
    }

    /// Exit code 3.
    pub fn refused(message: impl Into<String>) -> Failure {
        Failure {
            exit: Exit::Refused,
            message: message.into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// An error and its causes as one sentence: `a: b: c`.
pub fn sentence(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_the_numbers_of_the_contract() {
        for (code, exit) in [0, 1, 2, 3, 4, 130].into_iter().zip(Exit::ALL) {
            assert_eq!(u8::from(exit), code);
            assert_eq!(Exit::try_from(code).expect("a code"), exit);
        }
        assert!(Exit::try_from(5).is_err());
        assert!(serde_json::from_str::<Exit>("7").is_err());
    }
}
