//! Each command: its configuration or its daemon, the work, the result.

use super::args::{
    CheckArgs, ClearArgs, DumpArgs, LabelArgs, ListArgs, Recover, StartArgs, StatusArgs, StopArgs,
    SyncArgs,
};
use super::meter::{Meter, with_meter, with_meter_until_interrupted};
use super::output::{complain, print, print_json, unwritten};
use super::standing::{left_of, standing};
use crate::array::clear::clear as clear_array;
use crate::array::inspect::{Format, Verdict, check as check_array, dump as dump_part};
use crate::array::label::{Force, label as label_array};
use crate::array::start::{Options, bring_up};
use crate::config::quantity::size_rough;
use crate::config::{ArrayName, Config, ConfigError};
use crate::control::client::{self, Client};
use crate::control::port::{RingPort, ring_commands};
use crate::control::progress::{Progress, ProgressSink, Stage};
use crate::control::render;
use crate::control::run_dir::{Phase, RunDir};
use crate::control::status::{Absence, Standing, Unanswered};
use crate::daemon::ready::{Ready, Started};
use crate::daemon::{self, Up, machine, spawn};
use crate::outcome::{Exit, Failure, sentence};
use crate::serve::plane::Plane;
use serde_json::json;
use std::ffi::OsString;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// The choices of `start` after damage or loss that this version can carry out.
pub const START_CHOICES: &[&str] = &["--clear-error"];

pub(super) fn label(args: &LabelArgs) -> Result<Exit, Failure> {
    let config = load(&args.config)?;
    let labelled = with_meter(|progress| label_array(&config, force(args.force), progress))?;
    print(&format!(
        "{}: labelled as {}, a device of {} with a journal of {}\n",
        labelled.name,
        labelled.uuid,
        size_rough(labelled.size),
        size_rough(labelled.ring)
    ))?;
    for note in &labelled.notes {
        print(&format!("note: {note}\n"))?;
    }
    Ok(Exit::Done)
}

pub(super) fn start(args: &StartArgs) -> Result<Exit, Failure> {
    // What the file alone tells comes before what the machine lacks.
    let config = load(&args.config)?;
    let run = RunDir::system();
    let options = start_options(args, &run)?;
    machine::check()?;
    if args.foreground {
        let mut meter = Meter::new();
        let ready = Ready::Foreground {
            progress: Box::new(move |progress| meter.show(progress)),
            started: Box::new(|started| {
                if let Err(failure) = print_started(started) {
                    complain(&failure);
                }
            }),
        };
        daemon::run(&config, &run, ready, |progress| {
            serve_array(&config, &options, progress)
        })?;
    } else if spawn::is_daemon() {
        return Ok(be_the_daemon(&config, &run, &options));
    } else {
        let mut meter = Meter::new();
        let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
        let log = run.log(&config.name);
        let started = spawn::start(&arguments, &log, &mut |progress| meter.show(progress));
        drop(meter);
        print_started(&started?)?;
    }
    Ok(Exit::Done)
}

/// Brings the array up and puts what answers for it in front of its I/O thread.
fn serve_array(
    config: &Config,
    options: &Options,
    progress: &ProgressSink,
) -> Result<Up<Plane>, Failure> {
    let (commands, taken) = ring_commands();
    let (tell, ended) = watch::channel(false);
    let ending = move || {
        tell.send_replace(true);
    };
    let running = bring_up(config, options, taken, ending, progress)?;
    let waker = running.serving.waker();
    let facts = running.facts.clone();
    let port = Plane::new(
        running,
        RingPort::new(commands, move || waker.wake()),
        ended,
    );
    Ok(Up { port, facts })
}

/// In the process that stays. Whoever waits for it says what went wrong; nobody reads our stderr.
fn be_the_daemon(config: &Config, run: &RunDir, options: &Options) -> Exit {
    let pipe = match spawn::detach().and_then(|pipe| Ok((pipe.try_clone()?, pipe))) {
        Ok(pipe) => pipe,
        Err(error) => {
            complain(&Failure::failed(format!(
                "cannot detach from the terminal: {error}"
            )));
            return Exit::Failed;
        }
    };
    let (pipe, ours) = pipe;
    match daemon::run(config, run, Ready::Pipe(ours), |progress| {
        serve_array(config, options, progress)
    }) {
        Ok(()) => Exit::Done,
        Err(failure) => {
            Ready::failed(pipe, &failure);
            failure.exit
        }
    }
}

fn print_started(started: &Started) -> Result<(), Failure> {
    print(&format!(
        "{}\n{}\n",
        started.block.display(),
        started.link.display()
    ))
}

/// The choices after damage or loss that this version cannot carry out are refused, not ignored.
fn start_options(args: &StartArgs, run: &RunDir) -> Result<Options, Failure> {
    let asked = [
        ("--recover=ro", args.recover == Some(Recover::Ro)),
        (
            "--recover=truncate",
            args.recover == Some(Recover::Truncate),
        ),
        ("--new-journal", args.new_journal),
        ("--force-lose-journal", args.force_lose_journal),
        ("--force-partial-ro", args.force_partial_ro),
        ("--clear-error", args.clear_error),
    ];
    for (option, given) in asked {
        if given && !START_CHOICES.contains(&option) {
            return Err(Failure::usage(format!(
                "start {option}: this version cannot do that yet; nothing was touched"
            )));
        }
    }
    Ok(Options {
        run_dir: run.clone(),
        wait: args.wait,
        clear_error: args.clear_error,
    })
}

pub(super) fn stop(args: &StopArgs) -> Result<Exit, Failure> {
    let run = RunDir::system();
    let client = match Client::connect(&run, &args.name) {
        Ok(client) => client,
        Err(failure) => return stop_without_daemon(args, &run, failure),
    };
    let force = if args.force {
        client::Force::Yes
    } else {
        client::Force::No
    };
    with_meter_until_interrupted(goes_on("stop", &args.name), move |progress| {
        client.stop(force, &mut |report| progress.report(report.clone()))
    })?;
    print(&format!("{}: stopped, clean\n", args.name))?;
    Ok(Exit::Done)
}

/// The daemon has gone. If its device has not, somebody may be waiting for it. `failure` is what to say
/// where there is nothing to stop.
fn stop_without_daemon(args: &StopArgs, run: &RunDir, failure: Failure) -> Result<Exit, Failure> {
    let name = &args.name;
    if run.daemon(name).is_some() {
        return Err(failure);
    }
    let Some(left) = left_of(run, name)? else {
        return Err(failure);
    };
    if !args.force {
        return Err(left.without_daemon());
    }
    let mut meter = Meter::new();
    // Nobody begins to serve it while it is being taken away.
    let lock = run.lock(name, |waited| {
        let waited = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        let daemon = format!("the killed daemon of {name}");
        meter.show(&Progress::new(Stage::Wait, waited, 0).of_part(daemon));
        Ok(())
    })?;
    lock.tell(Phase::Stopping);
    left.give_up(&lock)?;
    daemon::tidy(run, name, &left.status(), &lock);
    drop(meter);
    print(&format!(
        "{name}: {} was taken away, whoever used it gets errors; the array stays dirty, and its next start recovers \
         it\n",
        left.block().display()
    ))?;
    Ok(Exit::Done)
}

pub(super) fn sync(args: &SyncArgs) -> Result<Exit, Failure> {
    let run = RunDir::system();
    let mut client = match Client::connect(&run, &args.name) {
        Ok(client) => client,
        Err(failure) if run.daemon(&args.name).is_some() => return Err(failure),
        Err(failure) => {
            let left = left_of(&run, &args.name)?;
            return Err(left.map_or(failure, |left| left.without_daemon()));
        }
    };
    with_meter_until_interrupted(goes_on("sync", &args.name), move |progress| {
        client.sync(&mut |report| progress.report(report.clone()))
    })?;
    print(&format!("{}: durable and home\n", args.name))?;
    Ok(Exit::Done)
}

fn goes_on(what: &str, name: &ArrayName) -> String {
    format!("the {what} goes on in the daemon; see ujournal status {name}")
}

pub(super) fn status(args: &StatusArgs) -> Result<Exit, Failure> {
    let run = RunDir::system();
    let found = match &args.name {
        Some(name) => vec![known(standing(&run, name)?)?],
        None => standings(&run)?,
    };
    match (&found[..], &args.name) {
        ([one], Some(_)) if args.json => print_json(one)?,
        _ if args.json => print_json(&found)?,
        ([], _) => print(&render::list(&[]))?,
        _ => {
            let texts: Vec<String> = found.iter().map(in_full).collect();
            print(&texts.join("\n"))?;
        }
    }
    let all_answer = found
        .iter()
        .all(|array| matches!(array, Standing::Answers(_)));
    Ok(if all_answer { Exit::Done } else { Exit::Failed })
}

/// Who asks for one array alone is told in a sentence why nothing can be found out.
fn known(array: Standing) -> Result<Standing, Failure> {
    match array {
        Standing::Unanswered(Unanswered {
            state: Absence::Unknown,
            reason: Some(reason),
            ..
        }) => Err(Failure::failed(reason)),
        Standing::Unanswered(_) | Standing::Answers(_) => Ok(array),
    }
}

fn in_full(array: &Standing) -> String {
    match array {
        Standing::Answers(status) => render::status(status, now()),
        Standing::Unanswered(array) => render::unanswered(array),
    }
}

pub(super) fn list(args: &ListArgs) -> Result<Exit, Failure> {
    let arrays = standings(&RunDir::system())?;
    if args.json {
        let objects: Vec<_> = arrays.iter().map(list_entry).collect();
        print_json(&objects)?;
    } else {
        print(&render::list(&arrays))?;
    }
    Ok(Exit::Done)
}

/// Every array has every name; what is not known is null.
fn list_entry(array: &Standing) -> serde_json::Value {
    let (state, reason, device, fill, pid) = match array {
        Standing::Answers(status) => (
            status.state.to_string(),
            &status.reason,
            Some(&status.device),
            Some(status.journal.fill),
            Some(status.pid),
        ),
        Standing::Unanswered(array) => (
            array.state.to_string(),
            &array.reason,
            array.device.as_ref(),
            None,
            array.pid,
        ),
    };
    json!({
        "name": array.name(),
        "state": state,
        "reason": reason,
        "block": device.map(|device| &device.block),
        "link": device.map(|device| &device.link),
        "size": device.map(|device| device.size),
        "fill": fill,
        "pid": pid,
    })
}

/// Every array that has a daemon, or a device without one.
fn standings(run: &RunDir) -> Result<Vec<Standing>, Failure> {
    let names = run.names().map_err(|error| {
        Failure::failed(format!(
            "{}: cannot be listed: {error}",
            run.path().display()
        ))
    })?;
    // One that fails is one of which nothing is left but files that point to nothing.
    let found = names.iter().filter_map(|name| standing(run, name).ok());
    Ok(found.collect())
}

pub(super) fn dump(args: &DumpArgs) -> Result<Exit, Failure> {
    let format = if args.json {
        Format::Json
    } else {
        Format::Text
    };
    let mut out = BufWriter::new(io::stdout().lock());
    dump_part(&args.path, format, &mut out)?;
    out.flush().map_err(|error| unwritten(&error))?;
    Ok(Exit::Done)
}

pub(super) fn check(args: &CheckArgs) -> Result<Exit, Failure> {
    let config = load(&args.config)?;
    let report = with_meter(|progress| check_array(&config, progress))?;
    if args.json {
        print_json(&report)?;
    } else {
        print(&report.to_string())?;
    }
    Ok(match report.verdict {
        Verdict::Serve => Exit::Done,
        Verdict::Refuse => Exit::Refused,
        Verdict::Damage => Exit::Damaged,
    })
}

pub(super) fn clear(args: &ClearArgs) -> Result<Exit, Failure> {
    let config = load(&args.config)?;
    with_meter(|progress| clear_array(&config, force(args.force), progress))?;
    print(&format!("{}: labels taken off\n", config.name))?;
    Ok(Exit::Done)
}

fn load(file: &Path) -> Result<Config, Failure> {
    Config::load(file).map_err(|error| {
        let message = sentence(&error);
        match error {
            // A file that is not there is a slip on the command line; one that cannot be read is not.
            ConfigError::Read { source, .. } if source.kind() != io::ErrorKind::NotFound => {
                Failure::failed(message)
            }
            ConfigError::Read { .. }
            | ConfigError::NotText { .. }
            | ConfigError::Syntax { .. }
            | ConfigError::UnknownKey { .. }
            | ConfigError::Missing { .. }
            | ConfigError::Value { .. } => Failure::usage(message),
        }
    })
}

fn force(given: bool) -> Force {
    if given { Force::Yes } else { Force::No }
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
