//! Processes: who has something open, who holds a lock, and who can still act.

use super::{Identity, Kernel, bytes, entries, leads_to, name_of, text};
use std::fmt;
use std::fs;

/// A process, for messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its command line, or as much as is known of it.
    pub command: String,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, self.command)
    }
}

/// What a process may do with what it has open.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Opening {
    /// Read only: such as the programs that watch disks.
    ForReading,
    /// Write.
    ForWriting,
}

/// Whether a process can still act.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// It runs, or waits.
    Alive,
    /// It has ended, or is killed and only waits for its I/O.
    Dead,
}

/// Bits of `/proc/PID/stat` field 9: the process is on its way out.
const PF_EXITING: u64 = 0x4;

/// The bit of SIGKILL in the sets of `/proc/PID/status`.
const SIGKILL_PENDING: u64 = 1 << 8;

/// Characters of a command line that a message shows.
const COMMAND_SHOWN: usize = 80;

impl Kernel {
    /// The processes that hold or wait in `/proc/locks` with `flock` on a file. A holder's number
    /// stays there after its death, for as long as the open file lives.
    pub fn flock_holders(&self, identity: Identity) -> Vec<u32> {
        let Identity::File { filesystem, inode } = identity else {
            return Vec::new();
        };
        let place = format!("{:02x}:{:02x}:{inode}", filesystem.major, filesystem.minor);
        let content = text(&self.path("proc/locks")).unwrap_or_default();
        content
            .lines()
            .filter_map(|line| flock_of(line, &place))
            .collect()
    }

    /// Every process that has one of `identities` open, but for this one; the ones that write first.
    ///
    /// The processes of other users are not seen unless we are root.
    pub fn openers(&self, identities: &[Identity]) -> Vec<(Process, Opening)> {
        let mut found: Vec<(u32, Opening)> = Vec::new();
        for pid in self.processes() {
            if let Some(opening) = self.opening(pid, identities) {
                found.push((pid, opening));
            }
        }
        found.sort_by_key(|(pid, opening)| (std::cmp::Reverse(*opening), *pid));
        found
            .into_iter()
            .map(|(pid, opening)| (self.process(pid), opening))
            .collect()
    }

    /// All processes but for this one, in the order of their numbers.
    pub(super) fn processes(&self) -> Vec<u32> {
        let this = std::process::id();
        let pids = entries(&self.path("proc"))
            .into_iter()
            .filter_map(|path| name_of(&path)?.parse().ok());
        let mut pids: Vec<u32> = pids.filter(|pid| *pid != this).collect();
        pids.sort_unstable();
        pids
    }

    /// How a process has one of `identities` open, if at all: for writing, if any of its openings is.
    pub fn opening(&self, pid: u32, identities: &[Identity]) -> Option<Opening> {
        let descriptors = entries(&self.path(&format!("proc/{pid}/fd")));
        let matching = descriptors
            .iter()
            .filter(|link| identities.iter().any(|identity| leads_to(link, *identity)));
        matching
            .filter_map(|link| self.opening_of(pid, &name_of(link)?))
            .max()
    }

    fn opening_of(&self, pid: u32, descriptor: &str) -> Option<Opening> {
        let info = text(&self.path(&format!("proc/{pid}/fdinfo/{descriptor}")))?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
        // The access mode is the last octal digit's lower two bits: 0 reads, 1 and 2 write.
        let reads_only = flags.trim_end().ends_with(['0', '4']);
        Some(if reads_only {
            Opening::ForReading
        } else {
            Opening::ForWriting
        })
    }

    /// What to call a process.
    pub fn process(&self, pid: u32) -> Process {
        let line = bytes(&self.path(&format!("proc/{pid}/cmdline"))).unwrap_or_default();
        let words = String::from_utf8_lossy(&line).replace(|c: char| c.is_control(), " ");
        let command = if words.trim().is_empty() {
            self.process_name(pid)
        } else {
            words.trim().into()
        };
        Process {
            pid,
            command: command.chars().take(COMMAND_SHOWN).collect(),
        }
    }

    /// The short name of a process: of its program, at most 15 characters.
    pub fn process_name(&self, pid: u32) -> String {
        text(&self.path(&format!("proc/{pid}/comm"))).unwrap_or_else(|| "unknown".into())
    }

    /// Whether a process can still do anything. One that was killed but whose I/O is in flight cannot:
    /// it waits in the kernel, as a zombie or exiting, with the signal pending.
    pub fn life(&self, pid: u32) -> Life {
        let Some(stat) = text(&self.path(&format!("proc/{pid}/stat"))) else {
            return Life::Dead;
        };
        // The name, field 2, is in parentheses and may hold anything, even parentheses.
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
        let state = fields.first().copied().unwrap_or_default();
        let flags: u64 = fields
            .get(6)
            .and_then(|text| text.parse().ok())
            .unwrap_or(0);
        if matches!(state, "Z" | "X" | "x") || flags & PF_EXITING != 0 || self.is_killed(pid) {
            return Life::Dead;
        }
        Life::Alive
    }

    /// A process without a status has gone since it was looked at.
    fn is_killed(&self, pid: u32) -> bool {
        let Some(status) = text(&self.path(&format!("proc/{pid}/status"))) else {
            return true;
        };
        let sets = status.lines().filter_map(|line| {
            line.strip_prefix("SigPnd:")
                .or_else(|| line.strip_prefix("ShdPnd:"))
        });
        sets.filter_map(|set| u64::from_str_radix(set.trim(), 16).ok())
            .any(|set| set & SIGKILL_PENDING != 0)
    }

    /// Whether a process has `identity` open. Unlike [`Kernel::openers`], a process whose descriptors
    /// may not be read counts as having it.
    pub fn may_have_open(&self, pid: u32, identity: Identity) -> bool {
        match fs::read_dir(self.path(&format!("proc/{pid}/fd"))) {
            Ok(_) => self.opening(pid, &[identity]).is_some(),
            Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
        }
    }
}

/// The owner in a line of `/proc/locks`, if it is an `flock` at `place`. A line with `->` is only
/// waiting.
///
/// `1: FLOCK  ADVISORY  WRITE 12379 fe:00:10117132 0 EOF`
fn flock_of(line: &str, place: &str) -> Option<u32> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let is_it = fields.get(1) == Some(&"FLOCK") && fields.get(5) == Some(&place);
    if !is_it {
        return None;
    }
    fields.get(4)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::DeviceNumber;
    use super::super::layout::Machine;
    use super::*;

    #[test]
    fn only_the_holder_of_an_flock_is_named_and_no_waiter() {
        let machine = Machine::empty();
        machine.file(
            "proc/locks",
            "1: FLOCK  ADVISORY  WRITE 70 fe:00:10117132 0 EOF\n\
             1: -> FLOCK  ADVISORY  WRITE 71 fe:00:10117132 0 EOF\n\
             2: POSIX  ADVISORY  WRITE 72 fe:00:10117132 0 EOF\n\
             3: FLOCK  ADVISORY  WRITE 73 08:01:10117132 0 EOF\n\
             4: FLOCK\n",
        );
        let identity = Identity::File {
            filesystem: DeviceNumber {
                major: 254,
                minor: 0,
            },
            inode: 10_117_132,
        };
        assert_eq!(machine.kernel().flock_holders(identity), [70]);
    }

    #[test]
    fn a_process_is_found_by_what_it_has_open_and_writers_come_first() {
        let machine = Machine::empty();
        let file = tempfile::NamedTempFile::new().unwrap();
        let other = tempfile::NamedTempFile::new().unwrap();
        machine
            .process(5, "watcher -d", file.path(), "0100000")
            .process(7, "ujournal start vol0", file.path(), "02140002");
        machine.process(6, "stranger", other.path(), "0100002");
        let identity = Identity::of(&file.as_file().metadata().unwrap()).unwrap();
        let expected = [
            (
                Process {
                    pid: 7,
                    command: "ujournal start vol0".into(),
                },
                Opening::ForWriting,
            ),
            (
                Process {
                    pid: 5,
                    command: "watcher -d".into(),
                },
                Opening::ForReading,
            ),
        ];
        assert_eq!(machine.kernel().openers(&[identity]), expected);
        assert!(machine.kernel().may_have_open(7, identity));
        assert!(!machine.kernel().may_have_open(6, identity));
        assert!(!machine.kernel().may_have_open(99, identity));
    }

    #[test]
    fn a_killed_process_is_dead_while_its_io_keeps_it_in_the_kernel() {
        let machine = Machine::empty();
        let check = |stat: &str, pending: &str, expected: Life| {
            machine
                .file("proc/5/stat", stat)
                .file("proc/5/status", format!("Name:\tx\nShdPnd:\t{pending}\n"));
            assert_eq!(machine.kernel().life(5), expected, "{stat} {pending}");
        };
        check(
            "5 (a) b) S 1 1 1 0 -1 4194304 0",
            "0000000000000000",
            Life::Alive,
        );
        check(
            "5 (a) b) D 1 1 1 0 -1 4194304 0",
            "0000000000000100",
            Life::Dead,
        );
        check(
            "5 (a) b) D 1 1 1 0 -1 4194308 0",
            "0000000000000000",
            Life::Dead,
        );
        check(
            "5 (a) b) Z 1 1 1 0 -1 4194304 0",
            "0000000000000000",
            Life::Dead,
        );
        check(
            "5 (x) x 1 1 1 0 -1 4194304 0",
            "0000000000000000",
            Life::Dead,
        );
        // SIGTERM may be handled; what stands in the name is no state.
        check(
            "5 (a ) Z 4) S 1 1 1 0 -1 4194560 0",
            "0000000000004000",
            Life::Alive,
        );
        check("nonsense", "nonsense", Life::Alive);
        assert_eq!(machine.kernel().life(6), Life::Dead);
    }

    #[test]
    fn this_process_is_alive_and_a_reaped_child_is_dead() {
        let kernel = Kernel::running();
        assert_eq!(kernel.life(std::process::id()), Life::Alive);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        assert_eq!(kernel.life(pid), Life::Dead);
    }
}
