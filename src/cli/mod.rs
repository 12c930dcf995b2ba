//! The command line: `main` hands its arguments in and exits with what comes out.
//!
//! Results go to stdout, one sentence about what went wrong to stderr, and the exit code is that of the
//! contract ([`crate::outcome::Exit`]). What each command does with the disks stands elsewhere; here is
//! how it is asked for and how it answers.

mod args;
mod commands;
mod meter;
mod output;
mod standing;

pub use args::Cli;
pub use commands::START_CHOICES;

use crate::config::nearest;
use crate::outcome::{Exit, Failure};
use args::Command;
use clap::Parser as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;

/// Runs one command; returns how it ended.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Exit {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let result = match Cli::try_parse_from(&arguments) {
        Ok(cli) => dispatch(cli.command),
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
            ) =>
        {
            output::print(&error.render().to_string()).map(|()| Exit::Done)
        }
        Err(error) => Err(Failure::usage(usage_sentence(&error, &arguments))),
    };
    result.unwrap_or_else(|failure| {
        output::complain(&failure);
        failure.exit
    })
}

fn dispatch(command: Command) -> Result<Exit, Failure> {
    match command {
        Command::Label(args) => commands::label(&args),
        Command::Start(args) => commands::start(&args),
        Command::Stop(args) => commands::stop(&args),
        Command::Sync(args) => commands::sync(&args),
        Command::Status(args) => commands::status(&args),
        Command::List(args) => commands::list(&args),
        Command::Dump(args) => commands::dump(&args),
        Command::Check(args) => commands::check(&args),
        Command::Clear(args) => commands::clear(&args),
    }
}

/// What clap says on several lines, as one sentence that ends with where to read on.
fn usage_sentence(error: &clap::Error, arguments: &[OsString]) -> String {
    let known = |name: &&str| {
        <Cli as clap::CommandFactory>::command()
            .find_subcommand(name)
            .is_some()
    };
    let command = arguments
        .get(1)
        .and_then(|argument| argument.to_str())
        .filter(known);
    let help = command.map_or("ujournal --help".to_owned(), |command| {
        format!("ujournal {command} --help")
    });
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return format!("expected a command: see `{help}`");
    }
    let text = error.render().to_string();
    let paragraphs = text
        .split("\n\n")
        .take_while(|paragraph| {
            !paragraph.starts_with("Usage:") && !paragraph.starts_with("For more")
        })
        .map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|paragraph| !is_tip(paragraph))
        .chain(tip(error));
    let sentence = paragraphs.collect::<Vec<_>>().join("; ");
    let sentence = sentence.strip_prefix("error: ").unwrap_or(&sentence);
    format!("{sentence}: see `{help}`")
}

fn is_tip(paragraph: &str) -> bool {
    paragraph.starts_with("tip:")
}

/// What was probably meant. The parser's own tips are not passed on: its idea of what is similar makes
/// `start --force` into `--force-partial-ro`, which gives up data, and `--json` into a file of that name.
fn tip(error: &clap::Error) -> Option<String> {
    let wrong = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        Some(_) | None => None,
    };
    if let Some(word) = wrong(ContextKind::InvalidSubcommand) {
        let cli = <Cli as clap::CommandFactory>::command();
        let names: Vec<&str> = cli.get_subcommands().map(clap::Command::get_name).collect();
        let command = args::command_meant_by(word).or_else(|| nearest(word, &names))?;
        return Some(format!("did you mean '{command}'?"));
    }
    let word = wrong(ContextKind::InvalidArg)?;
    let similar = match error.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(option)) => Some(option.as_str()),
        Some(_) | None => None,
    };
    let option = nearest(word, &[similar?])?;
    Some(format!("did you mean '{option}'?"))
}
