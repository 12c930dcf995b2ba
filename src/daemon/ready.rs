//! What the process that stays tells the one that waits for it: a line for each step, then the end.
//!
//! ```text
//!   {"progress":{...}} ...   then   {"started":{"block":"/dev/ublkb0","link":"/dev/ujournal/vol0"}}
//!                            or     {"failed":{"exit":3,"message":"..."}}
//!                            or     the end of the pipe: it died
//! ```

use super::log::Echo;
use crate::control::progress::Progress;
use crate::control::protocol::line;
use crate::outcome::Failure;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;

/// The two names of a device that answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Started {
    /// `/dev/ublkbN`.
    pub block: PathBuf,
    /// `/dev/ujournal/NAME`.
    pub link: PathBuf,
}

/// One line through the pipe.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// It goes on.
    Progress(Progress),
    /// I/O is answered.
    Started(Started),
    /// It does not start.
    Failed(Failure),
}

/// Whoever waits for a start.
pub enum Ready {
    /// The process that executed us, behind a pipe.
    Pipe(File),
    /// Whoever looks at this process itself.
    Foreground {
        /// Shows how far it is.
        progress: Box<dyn FnMut(&Progress) + Send>,
        /// Shows the device.
        started: Box<dyn FnMut(&Started) + Send>,
    },
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ready::Pipe(_) => "Ready::Pipe",
            Ready::Foreground { .. } => "Ready::Foreground",
        })
    }
}

impl Ready {
    /// How far it is.
    pub fn progress(&mut self, progress: &Progress) {
        match self {
            Ready::Pipe(_) => self.send(&Message::Progress(progress.clone())),
            Ready::Foreground { progress: show, .. } => show(progress),
        }
    }

    /// I/O is answered.
    pub fn started(mut self, started: &Started) {
        match &mut self {
            Ready::Pipe(_) => {
                self.send(&Message::Started(started.clone()));
                super::spawn::let_go_of_stderr();
            }
            Ready::Foreground { started: show, .. } => show(started),
        }
    }

    /// It does not start.
    pub fn failed(pipe: File, failure: &Failure) {
        Ready::Pipe(pipe).send(&Message::Failed(failure.clone()));
    }

    /// Whether somebody looks at this process itself.
    pub fn is_foreground(&self) -> bool {
        matches!(self, Ready::Foreground { .. })
    }

    /// Where the log goes beside its file.
    pub fn echo(&self) -> Echo {
        if self.is_foreground() {
            Echo::ToStderr
        } else {
            Echo::Nowhere
        }
    }

    fn send(&mut self, message: &Message) {
        if let Ready::Pipe(pipe) = self {
            // Nobody may be there any more. What was begun is finished all the same: the device is
            // what counts, and the log says what came of it.
            drop(pipe.write_all(&line(message)));
        }
    }
}
