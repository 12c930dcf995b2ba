//! What the commands ask of the array layer: the one place where the command line meets the disks.

use crate::config::Config;
use crate::control::in_use::{Claim, DeviceHold};
use crate::control::port::{Port, Stop, StopEnd};
use crate::control::progress::ProgressSink;
use crate::control::status::{Recovery, Status};
use crate::daemon::Up;
use crate::outcome::Failure;
use serde::Serialize;
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The choices of `start` after damage or loss that this version can carry out.
pub const START_CHOICES: &[&str] = &[];

/// Whether what stands in the way may be overridden.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Force {
    /// It may not.
    No,
    /// It may.
    Yes,
}

/// In which form to show what is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// How to start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StartOptions {
    /// How long to wait for parts that are missing.
    pub wait: Duration,
    /// Leave the state FAILED.
    pub clear_error: bool,
}

/// What was labelled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Labelled {
    /// The array's name.
    pub name: String,
    /// Its identity.
    pub uuid: String,
    /// Bytes of the device that it will expose.
    pub size: u64,
    /// Bytes of the journal's ring.
    pub ring: u64,
}

/// What `check` found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CheckReport {
    /// The array's name.
    pub array: String,
    /// What a start would do.
    pub verdict: Verdict,
    /// Why, in one sentence.
    pub because: String,
    /// What each part says.
    pub parts: Vec<CheckedPart>,
    /// What recovery would do, as far as it could be found out.
    pub recovery: Option<Recovery>,
    /// Whatever else an administrator should know: damaged blocks, lost marks, larger parts.
    pub findings: Vec<String>,
}

/// What a start would do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Serve.
    Serve,
    /// Refuse.
    Refuse,
    /// Refuse, for acknowledged data is damaged.
    Damage,
}

/// What one part says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CheckedPart {
    /// Where.
    pub path: PathBuf,
    /// `member 0`, `journal`, or what else it is.
    pub role: String,
    /// In words.
    pub state: String,
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            Verdict::Serve => "would start",
            Verdict::Refuse => "would be refused",
            Verdict::Damage => "is damaged",
        };
        writeln!(f, "{}: {verdict}: {}", self.array, self.because)?;
        for part in &self.parts {
            writeln!(
                f,
                "  {:<9} {}: {}",
                part.role,
                part.path.display(),
                part.state
            )?;
        }
        if let Some(recovery) = &self.recovery {
            writeln!(
                f,
                "  recovery  {}",
                crate::control::render::recovery(recovery)
            )?;
        }
        for finding in &self.findings {
            writeln!(f, "  note      {finding}")?;
        }
        Ok(())
    }
}

/// Writes the labels of a new array.
pub fn label(
    _config: &Config,
    _force: Force,
    _progress: &ProgressSink,
) -> Result<Labelled, Failure> {
    Err(not_built("label"))
}

/// Takes the labels off.
pub fn clear(_config: &Config, _force: Force, _progress: &ProgressSink) -> Result<(), Failure> {
    Err(not_built("clear"))
}

/// Finds out what a start would do. Reads only.
pub fn check(_config: &Config, _progress: &ProgressSink) -> Result<CheckReport, Failure> {
    Err(not_built("check"))
}

/// Writes what a disk or file holds to `out`. Reads only.
pub fn dump(_path: &Path, _format: Format, _out: &mut dyn Write) -> Result<(), Failure> {
    Err(not_built("dump"))
}

/// Recovers the array, or takes its live device over, and serves it.
pub fn bring_up(
    _config: &Config,
    _options: StartOptions,
    _progress: &ProgressSink,
) -> Result<Up<NotBuilt>, Failure> {
    Err(not_built("start"))
}

fn not_built(command: &str) -> Failure {
    Failure::failed(format!("{command} is not built yet"))
}

/// There is none.
#[derive(Debug)]
pub enum NotBuilt {}

impl Port for NotBuilt {
    async fn status(&self) -> Result<Status, Failure> {
        match *self {}
    }

    async fn sync(&self, _progress: ProgressSink) -> Result<(), Failure> {
        match *self {}
    }

    async fn stop(
        &self,
        _how: Stop,
        _hold: Option<DeviceHold>,
        _progress: ProgressSink,
    ) -> StopEnd {
        match *self {}
    }

    async fn ended(&self) -> Failure {
        match *self {}
    }

    async fn claim(&self) -> Result<Claim, Failure> {
        match *self {}
    }
}
