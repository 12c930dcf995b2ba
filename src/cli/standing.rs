//! How an array stands, whether or not a daemon answers for it.

use crate::array::device::{Left, left};
use crate::config::ArrayName;
use crate::control::client::Client;
use crate::control::run_dir::{Daemon, Phase, RunDir};
use crate::control::status::{Absence, Standing, Unanswered};
use crate::outcome::Failure;

/// A daemon that is found serving may have begun to only after it was asked.
const TRIES: u32 = 2;

/// How `name` stands.
///
/// # Errors
/// If there is no daemon, and nothing is left of one.
pub(super) fn standing(run: &RunDir, name: &ArrayName) -> Result<Standing, Failure> {
    let mut tries = 0;
    let (daemon, failure) = loop {
        tries += 1;
        let before = run.daemon(name);
        let asked = Client::connect(run, name).and_then(|mut client| client.status());
        let failure = match asked {
            Ok(status) => return Ok(Standing::Answers(Box::new(status))),
            Err(failure) => failure,
        };
        let after = run.daemon(name);
        // Whatever has changed meanwhile may be why it did not answer.
        if before == after || tries == TRIES {
            break (after, failure);
        }
    };
    let unanswered = match daemon {
        Some(daemon) => of_daemon(run, name, daemon, failure),
        None => match left_of(run, name) {
            Ok(Some(left)) => of_device(run, name, &left),
            Ok(None) => return Err(failure),
            Err(unknown) => Unanswered {
                state: Absence::Unknown,
                reason: Some(unknown.message),
                ..Unanswered::of(name)
            },
        },
    };
    Ok(Standing::Unanswered(unanswered))
}

fn of_daemon(run: &RunDir, name: &ArrayName, daemon: Daemon, failure: Failure) -> Unanswered {
    let record = run.device(name).map(|record| record.device);
    let (state, reason, device) = match daemon.phase {
        // What it will serve is not known yet.
        Phase::Starting => (Absence::Starting, None, None),
        Phase::Stopping => (Absence::Stopping, None, record),
        Phase::Serving => (Absence::Unknown, Some(failure.message), record),
    };
    Unanswered {
        state,
        reason,
        pid: Some(daemon.pid),
        device,
        ..Unanswered::of(name)
    }
}

fn of_device(run: &RunDir, name: &ArrayName, left: &Left) -> Unanswered {
    let why = if run.has_died(name) {
        "its daemon died"
    } else {
        "no daemon"
    };
    Unanswered {
        state: Absence::Waiting,
        reason: Some(format!("{why}; ujournal start CONFIG goes on")),
        device: Some(left.status()),
        ..Unanswered::of(name)
    }
}

/// The device of an array that has no daemon, if there is one.
///
/// # Errors
/// If the kernel cannot be asked.
pub(super) fn left_of(run: &RunDir, name: &ArrayName) -> Result<Option<Left>, Failure> {
    match run.device(name) {
        Some(record) => left(name.as_str(), &record),
        None => Ok(None),
    }
}
