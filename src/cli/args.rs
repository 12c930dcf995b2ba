//! The commands and their options, with the help that each of them shows. A contract: what stands
//! here stays.

use crate::config::ArrayName;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A block-level journal in user space: put a journal under any filesystem.
///
/// An array (one disk, or several as RAID0, and a journal) appears as one block device. After a power
/// cut it holds a prefix of the writes that it was given, and at least everything that was flushed.
#[derive(Parser, Debug)]
#[command(
    name = "ujournal",
    version,
    after_help = "\
Examples:
  ujournal label /etc/ujournal/vol0.toml     once, on new disks
  ujournal start /etc/ujournal/vol0.toml     at each boot
  mkfs.ext4 /dev/ujournal/vol0
  ujournal status vol0
  ujournal stop vol0

Exit codes:
  0  done
  1  it failed at run time (also: no ublk driver, no permission, io_uring off, no such running array)
  2  wrong usage or configuration
  3  refused, to protect data: dirty, foreign, in use, missing, too small
  4  damage found in acknowledged data
  130  interrupted; stop and sync go on in the daemon"
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Write the labels of a new array onto its disks
    Label(LabelArgs),
    /// Serve an array: recover it, or take over the device of a daemon that died
    Start(StartArgs),
    /// Bring everything home, mark the array clean, remove its device
    Stop(StopArgs),
    /// Return when what was answered so far is durable and home
    Sync(SyncArgs),
    /// Show how arrays fare: state, fill, lag, rates, latencies, errors
    Status(StatusArgs),
    /// List the arrays that run, and those whose device waits for a daemon
    List(ListArgs),
    /// Show superblocks and journal records of a disk or file; reads only
    Dump(DumpArgs),
    /// Say what a start would do: superblocks, journal, map; reads only
    Check(CheckArgs),
    /// Take the labels off an array's disks
    Clear(ClearArgs),
}

/// `label`.
#[derive(Args, Debug)]
#[command(after_help = "\
Refuses (exit 3) a disk that carries a filesystem, a partition table or a label, or that is in use. One
whose array has left a device without a daemon is refused with --force as well.
A journal that is a file is filled with zeroes, which takes as long as writing it.

Examples:
  ujournal label vol0.toml
  ujournal label --force vol0.toml           overwrite what is on the disks")]
pub struct LabelArgs {
    /// The array's configuration file
    #[arg(value_name = "CONFIG")]
    pub config: PathBuf,
    /// Overwrite whatever the disks carry
    #[arg(long)]
    pub force: bool,
}

/// `start`.
#[derive(Args, Debug)]
#[command(after_help = "\
Prints the device's two paths once I/O is answered, and leaves a daemon behind. Replay goes on behind it.

Examples:
  ujournal start vol0.toml
  ujournal start --wait 30s vol0.toml        at boot, while disks still appear
  ujournal start --foreground vol0.toml      under a service manager; ends with SIGTERM")]
pub struct StartArgs {
    /// The array's configuration file
    #[arg(value_name = "CONFIG")]
    pub config: PathBuf,
    /// Stay in the foreground, with the log on stderr
    #[arg(long)]
    pub foreground: bool,
    /// How long to wait for parts that are missing, like 30s
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_wait)]
    pub wait: Duration,
    /// After damage: serve read-only, or give up what is damaged (refused: not in this version)
    #[arg(long, value_name = "HOW", value_enum)]
    pub recover: Option<Recover>,
    /// The journal is lost, the members are clean: begin a new one (refused: not in this version)
    #[arg(long)]
    pub new_journal: bool,
    /// The journal is lost and was needed: give up what it held (refused: not in this version)
    #[arg(long)]
    pub force_lose_journal: bool,
    /// A member is lost: serve the others read-only (refused: not in this version)
    #[arg(long)]
    pub force_partial_ro: bool,
    /// Leave the state FAILED, after `check` found nothing
    #[arg(long)]
    pub clear_error: bool,
}

/// What to do about damage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Recover {
    /// Serve read-only, blocks in damaged records answer with an error
    Ro,
    /// Make that permanent: give up what is damaged
    Truncate,
}

/// `stop`.
#[derive(Args, Debug)]
#[command(after_help = "\
Refuses (exit 3) while the device is mounted or open, and says by whom. An interrupt ends the wait, not
the stop. Where the daemon has gone and left its device, --force takes that away; the array stays dirty.

Examples:
  ujournal stop vol0
  ujournal stop --force vol0                 though it is open: its users get errors from then on")]
pub struct StopArgs {
    /// The array's name
    #[arg(value_name = "NAME", value_parser = parse_name)]
    pub name: ArrayName,
    /// Stop although the device is in use
    #[arg(long)]
    pub force: bool,
}

/// `sync`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  sync && ujournal sync vol0                 the filesystem's memory first, then the journal")]
pub struct SyncArgs {
    /// The array's name
    #[arg(value_name = "NAME", value_parser = parse_name)]
    pub name: ArrayName,
}

/// `status`.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit code 1 if no daemon answers: STARTING, STOPPING, or WAITING (its device is there and waits for one).

Examples:
  ujournal status                            every array that `list` shows
  ujournal status vol0
  ujournal status vol0 --json | jq .journal.fill")]
pub struct StatusArgs {
    /// The array's name; all that `list` shows without it
    #[arg(value_name = "NAME", value_parser = parse_name)]
    pub name: Option<ArrayName>,
    /// As JSON: one object for NAME, a list of them without
    #[arg(long)]
    pub json: bool,
}

/// `list`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ujournal list
  ujournal list --json")]
pub struct ListArgs {
    /// As JSON: a list of objects
    #[arg(long)]
    pub json: bool,
}

/// `dump`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ujournal dump /dev/sdd
  ujournal dump journal --json | less")]
pub struct DumpArgs {
    /// A disk or file that is, or was, part of an array
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// `check`.
#[derive(Args, Debug)]
#[command(after_help = "\
The array must not be running. Exit code 0: it would start; 3: it would be refused; 4: damage.

Examples:
  ujournal check vol0.toml
  ujournal check vol0.toml --json")]
pub struct CheckArgs {
    /// The array's configuration file
    #[arg(value_name = "CONFIG")]
    pub config: PathBuf,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// `clear`.
#[derive(Args, Debug)]
#[command(after_help = "\
Refuses (exit 3) an array that was not stopped cleanly: its newest data is in its journal only. One that
has left a device without a daemon is refused with --force as well.

Examples:
  ujournal stop vol0 && ujournal clear vol0.toml
  ujournal clear --force vol0.toml           give up what the journal holds")]
pub struct ClearArgs {
    /// The array's configuration file
    #[arg(value_name = "CONFIG")]
    pub config: PathBuf,
    /// Although the array is dirty, and whatever part of it is there (exit 1 if not from every part)
    #[arg(long)]
    pub force: bool,
}

/// The command that was meant by a word that other programs have for it.
pub fn command_meant_by(word: &str) -> Option<&'static str> {
    let words = [
        ("label", &["create", "format", "mkfs", "init", "new"][..]),
        (
            "start",
            &[
                "assemble", "attach", "load", "open", "run", "recover", "resume", "up",
            ],
        ),
        ("stop", &["detach", "unload", "close", "deactivate", "down"]),
        ("sync", &["flush"]),
        ("status", &["detail", "info", "show", "stat"]),
        ("list", &["ls"]),
        ("dump", &["examine"]),
        ("check", &["fsck", "verify", "test"]),
        (
            "clear",
            &[
                "destroy",
                "remove",
                "delete",
                "wipe",
                "zero-superblock",
                "unlabel",
            ],
        ),
    ];
    let found = words.iter().find(|(_, others)| others.contains(&word));
    found.map(|(command, _)| *command)
}

fn parse_name(text: &str) -> Result<ArrayName, String> {
    text.parse().map_err(|error: crate::config::NotAName| {
        // A name has no point in it: whatever looks like a configuration is one.
        if Path::new(text).extension().is_some_and(|end| end == "toml") {
            "this is a configuration, expected the array's name, which stands in it".to_owned()
        } else {
            error.to_string()
        }
    })
}

/// A day is longer than any boot.
const WAIT_MAX: Duration = crate::config::limits::TIME_MAX;

fn parse_wait(text: &str) -> Result<Duration, String> {
    crate::config::quantity::parse_time(text)
        .filter(|wait| *wait <= WAIT_MAX)
        .ok_or_else(|| "expected a time up to 1day with its unit, like 30s or 5m".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_definitions_are_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_commands_and_options_are_those_of_the_contract() {
        let mut found: Vec<String> = Vec::new();
        for command in Cli::command().get_subcommands() {
            let mut words = vec![command.get_name().to_owned()];
            for argument in command.get_arguments() {
                let optional = if argument.is_required_set() { "" } else { "?" };
                words.push(match argument.get_long() {
                    Some(long) if argument.get_action().takes_values() => format!("--{long}="),
                    Some(long) => format!("--{long}"),
                    None => format!(
                        "{}{optional}",
                        argument.get_value_names().expect("a name")[0]
                    ),
                });
            }
            found.push(words.join(" "));
        }
        assert_eq!(
            found,
            [
                "label CONFIG --force",
                "start CONFIG --foreground --wait= --recover= --new-journal --force-lose-journal \
                 --force-partial-ro --clear-error",
                "stop NAME --force",
                "sync NAME",
                "status NAME? --json",
                "list --json",
                "dump PATH --json",
                "check CONFIG --json",
                "clear CONFIG --force",
            ]
        );
    }

    #[test]
    fn every_option_has_its_help_and_every_command_an_example() {
        for mut command in Cli::command().get_subcommands().cloned() {
            let name = command.get_name().to_owned();
            for argument in command.get_arguments() {
                assert!(
                    argument.get_help().is_some(),
                    "{name} {}",
                    argument.get_id()
                );
                assert!(!argument.is_hide_set(), "{name} {}", argument.get_id());
            }
            let help = command.render_long_help().to_string();
            assert!(command.get_about().is_some(), "{name}");
            let (_, examples) = help.split_once("Example").expect(&name);
            assert!(
                examples.contains(&format!("ujournal {name}")),
                "{name}: {examples}"
            );
            for line in help.lines() {
                assert!(line.chars().count() <= 110, "{name}: {line}");
            }
        }
    }

    #[test]
    fn every_word_of_other_programs_leads_to_a_command_and_is_none_itself() {
        let cli = Cli::command();
        for word in [
            "create",
            "assemble",
            "detail",
            "examine",
            "zero-superblock",
            "load",
            "detach",
            "destroy",
        ] {
            let command = command_meant_by(word).expect(word);
            assert!(cli.find_subcommand(command).is_some(), "{word}: {command}");
            assert!(cli.find_subcommand(word).is_none(), "{word}");
        }
        assert_eq!(command_meant_by("strat"), None);
    }

    #[test]
    fn a_wait_has_a_unit_and_an_end() {
        assert_eq!(parse_wait("0"), Ok(Duration::ZERO));
        assert_eq!(parse_wait("30s"), Ok(Duration::from_secs(30)));
        for text in ["", "30", "2days", "soon", "-1s"] {
            assert!(parse_wait(text).is_err(), "{text}");
        }
    }
}
