//! Each command: its configuration or its daemon, the work, the result.

use super::args::{
    CheckArgs, ClearArgs, DumpArgs, LabelArgs, ListArgs, Recover, StartArgs, StatusArgs, StopArgs,
    SyncArgs,
};
use super::meter::{Meter, with_meter};
use super::output::{complain, print, print_json, unwritten};
use crate::array::clear::clear as clear_array;
use crate::array::inspect::{Format, Verdict, check as check_array, dump as dump_part};
use crate::array::label::{Force, label as label_array};
use crate::array::start::{Options, bring_up};
use crate::config::quantity::size_rough;
use crate::config::{ArrayName, Config, ConfigError};
use crate::control::client::{self, Client};
use crate::control::port::{RingPort, ring_commands};
use crate::control::progress::ProgressSink;
use crate::control::render::{self, Listed};
use crate::control::run_dir::RunDir;
use crate::control::status::Status;
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
    let options = start_options(args)?;
    machine::check()?;
    let run = RunDir::system();
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
            serve_array(&config, options, progress)
        })?;
    } else if spawn::is_daemon() {
        return Ok(be_the_daemon(&config, &run, options));
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
    options: Options,
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
fn be_the_daemon(config: &Config, run: &RunDir, options: Options) -> Exit {
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
fn start_options(args: &StartArgs) -> Result<Options, Failure> {
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
        wait: args.wait,
        clear_error: args.clear_error,
    })
}

pub(super) fn stop(args: &StopArgs) -> Result<Exit, Failure> {
    let client = Client::connect(&RunDir::system(), &args.name)?;
    let force = if args.force {
        client::Force::Yes
    } else {
        client::Force::No
    };
    let mut meter = Meter::new();
    let stopped = client.stop(force, &mut |progress| meter.show(progress));
    drop(meter);
    stopped?;
    print(&format!("{}: stopped, clean\n", args.name))?;
    Ok(Exit::Done)
}

pub(super) fn sync(args: &SyncArgs) -> Result<Exit, Failure> {
    let mut client = Client::connect(&RunDir::system(), &args.name)?;
    let mut meter = Meter::new();
    let synced = client.sync(&mut |progress| meter.show(progress));
    drop(meter);
    synced?;
    print(&format!("{}: durable and home\n", args.name))?;
    Ok(Exit::Done)
}

pub(super) fn status(args: &StatusArgs) -> Result<Exit, Failure> {
    let run = RunDir::system();
    if let Some(name) = &args.name {
        let status = status_of(&run, name)?;
        if args.json {
            print_json(&status)?;
        } else {
            print(&render::status(&status, now()))?;
        }
        return Ok(Exit::Done);
    }
    let mut exit = Exit::Done;
    let mut found = Vec::new();
    for name in names(&run)? {
        match status_of(&run, &name) {
            Ok(status) => found.push(status),
            Err(failure) => {
                complain(&failure);
                exit = exit.max(failure.exit);
            }
        }
    }
    if args.json {
        print_json(&found)?;
    } else if found.is_empty() && exit == Exit::Done {
        print(&render::list(&[]))?;
    } else {
        let texts: Vec<String> = found
            .iter()
            .map(|status| render::status(status, now()))
            .collect();
        print(&texts.join("\n"))?;
    }
    Ok(exit)
}

pub(super) fn list(args: &ListArgs) -> Result<Exit, Failure> {
    let run = RunDir::system();
    let arrays: Vec<(ArrayName, Result<Status, Failure>)> = names(&run)?
        .into_iter()
        .map(|name| (name.clone(), status_of(&run, &name)))
        .collect();
    if args.json {
        let objects: Vec<_> = arrays
            .iter()
            .map(|(name, status)| match status {
                Ok(status) => json!({
                    "name": name.as_str(),
                    "state": status.state,
                    "block": status.device.block,
                    "link": status.device.link,
                    "size": status.device.size,
                    "fill": status.journal.fill,
                    "pid": status.pid,
                }),
                Err(failure) => json!({ "name": name.as_str(), "error": failure.message }),
            })
            .collect();
        print_json(&objects)?;
    } else {
        let listed: Vec<Listed<'_>> = arrays
            .iter()
            .map(|(name, status)| Listed {
                name: name.as_str(),
                status: status.as_ref().map_err(|failure| failure.message.as_str()),
            })
            .collect();
        print(&render::list(&listed))?;
    }
    Ok(Exit::Done)
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

fn status_of(run: &RunDir, name: &ArrayName) -> Result<Status, Failure> {
    Client::connect(run, name)?.status()
}

fn names(run: &RunDir) -> Result<Vec<ArrayName>, Failure> {
    run.names().map_err(|error| {
        Failure::failed(format!(
            "{}: cannot be listed: {error}",
            run.path().display()
        ))
    })
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
