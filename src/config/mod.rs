//! The configuration file: TOML text in, a [`Config`] out in which invalid values cannot exist.
//!
//! Everything that the file alone can tell is decided here: keys, units, ranges, the same path twice,
//! sizes below the minimum. What the disks can tell (too small, in use, foreign, two names for one
//! disk) is left to whoever opens them. Paths are taken from the folder of the file, not from where
//! the command was called, and stay absolute from then on, for the daemon leaves that folder.
//!
//! A key that is left out has the value that the example below shows, save `name` and
//! `data.members`, which must be there, and `journal.size`, which must be there without
//! `journal.device`.
//!
//! ```toml
//! name = "vol0"
//! [data]
//! members = ["/dev/sdb", "/dev/sdc"]
//! chunk = "64KiB"
//! [journal]
//! device = "/dev/sdd"          # left out: attached; then `size`, and `placement = "end"`
//! [device]
//! block_size = 512
//! queue_depth = 128
//! max_io = "512KiB"
//! [commit]
//! sync = "flush"
//! interval = "5s"
//! [replay]
//! round = "auto"
//! fill = 0.5
//! age = "30s"
//! idle = "200ms"
//! stall_timeout = "0"
//! [memory]
//! window = "auto"
//! extents = "1Mi"
//! ```

pub mod error;
pub mod limits;
pub mod quantity;
mod reader;
#[cfg(test)]
mod tests;

pub use error::ConfigError;

use crate::journal::geometry;
use crate::units::{FRAME, KIB, MIB, to_u64};
use quantity::size_exact;
pub(crate) use reader::nearest;
use reader::{Reader, Section};
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Sections that a later version will have: refused, but by their right name.
const LATER_SECTIONS: [&str; 1] = ["switch"];

const TOP_KEYS: [&str; 7] = [
    "name", "data", "journal", "device", "commit", "replay", "memory",
];
const DATA_KEYS: [&str; 2] = ["members", "chunk"];
const JOURNAL_KEYS: [&str; 3] = ["device", "size", "placement"];
const DEVICE_KEYS: [&str; 3] = ["block_size", "queue_depth", "max_io"];
const COMMIT_KEYS: [&str; 2] = ["sync", "interval"];
const REPLAY_KEYS: [&str; 5] = ["round", "fill", "age", "idle", "stall_timeout"];
const MEMORY_KEYS: [&str; 2] = ["window", "extents"];

/// One array, as its file describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The file, as it was given: for messages.
    pub file: PathBuf,
    /// The array's name.
    pub name: ArrayName,
    /// The members.
    pub data: Data,
    /// The journal.
    pub journal: Journal,
    /// The exposed device.
    pub device: Device,
    /// When what was answered becomes durable.
    pub commit: Commit,
    /// When and how it goes home.
    pub replay: Replay,
    /// How much memory it takes.
    pub memory: Memory,
}

/// `[data]`: where the blocks have their home.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Data {
    /// 1 to 32 disks or files, absolute, no path twice. Their order counts at label time only.
    pub members: Vec<PathBuf>,
    /// Bytes that lie together on one member: a power of two.
    pub chunk: u64,
}

/// `[journal]`: where it lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Journal {
    /// On a part of its own.
    Detached {
        /// A disk or file, absolute, no member.
        device: PathBuf,
        /// Bytes of it; `None` is all.
        size: Option<u64>,
    },
    /// In a region of each member.
    Attached {
        /// Bytes over all members together, before rounding up to whole chunks on each.
        size: u64,
        /// Where on the members.
        placement: Placement,
    },
}

/// Where on its members an attached journal lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Before the data.
    Start,
    /// In the midst of it.
    Middle,
    /// Behind it.
    End,
}

impl Placement {
    /// As the format has it.
    pub fn layout(self) -> geometry::Placement {
        match self {
            Placement::Start => geometry::Placement::Start,
            Placement::Middle => geometry::Placement::Middle,
            Placement::End => geometry::Placement::End,
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Placement::Start => "start",
            Placement::Middle => "middle",
            Placement::End => "end",
        })
    }
}

/// `[device]`: what the kernel is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Device {
    /// The logical block.
    pub block_size: BlockSize,
    /// Requests outstanding, 1 to 1024.
    pub queue_depth: u16,
    /// Bytes of the largest request: a multiple of 4 KiB.
    pub max_io: u64,
}

/// A logical block size: there are two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockSize {
    /// 512 bytes.
    Sector,
    /// 4096 bytes.
    Frame,
}

impl BlockSize {
    /// In bytes.
    pub fn bytes(self) -> u32 {
        match self {
            BlockSize::Sector => 512,
            BlockSize::Frame => 4096,
        }
    }
}

/// `[commit]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Commit {
    /// What an answer promises.
    pub sync: SyncMode,
    /// The longest time that an answered write stays volatile.
    pub interval: Duration,
}

/// What an answer to a write promises.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncMode {
    /// As a disk with a cache: durable at the next FLUSH, or by FUA.
    Flush,
    /// Durable at once.
    Always,
}

impl fmt::Display for SyncMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SyncMode::Flush => "flush",
            SyncMode::Always => "always",
        })
    }
}

/// `[replay]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replay {
    /// Bytes of one round.
    pub round: Size,
    /// From which part of the journal on replay runs whatever else there is to do, in thousandths.
    pub fill_permille: u16,
    /// How old a record may get.
    pub age: Duration,
    /// How long nothing must have been asked before replay runs for want of other work.
    pub idle: Duration,
    /// How long to wait for a member that returns errors; `None` is for ever.
    pub stall_timeout: Option<Duration>,
}

/// `[memory]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Bytes of the journal that are held in RAM as well.
    pub window: Size,
    /// Extents that the map holds at most.
    pub extents: u64,
}

/// Bytes, or as many as the program thinks right on this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// `"auto"`.
    Auto,
    /// So many.
    Bytes(u64),
}

impl Config {
    /// Reads the configuration in `file`.
    pub fn load(file: &Path) -> Result<Config, ConfigError> {
        let text = read(file)?;
        // The folder must be absolute: the daemon does not stay where it was called.
        let absolute = std::path::absolute(file).map_err(|source| ConfigError::Read {
            file: file.to_owned(),
            source,
        })?;
        let folder = absolute.parent().unwrap_or(Path::new("/"));
        Config::parse(file, &text, folder)
    }

    /// Reads the configuration in `text`, whose relative paths are taken from `folder`.
    pub fn parse(file: &Path, text: &str, folder: &Path) -> Result<Config, ConfigError> {
        let reader = Reader::new(file, text);
        let tree = reader.parse()?;
        let top = reader.top(&tree, &TOP_KEYS)?;

        // Unknown keys first, in every section: a slip of the pen is better told by its own name
        // than by the key that it leaves missing.
        let data = top.section("data", &DATA_KEYS)?;
        let journal = top.section("journal", &JOURNAL_KEYS)?;
        let device = top.section("device", &DEVICE_KEYS)?;
        let commit = top.section("commit", &COMMIT_KEYS)?;
        let replay = top.section("replay", &REPLAY_KEYS)?;
        let memory = top.section("memory", &MEMORY_KEYS)?;

        let name = top
            .need("name", ArrayName::RULE)?
            .parsed(|text| text.parse().ok(), ArrayName::RULE)?;
        let data = read_data(&data, folder)?;
        let device = read_device(&device)?;
        let memory = read_memory(&memory, device.max_io)?;
        Ok(Config {
            file: file.to_owned(),
            name,
            journal: read_journal(&journal, folder, &data, device.max_io)?,
            data,
            device,
            commit: read_commit(&commit)?,
            replay: read_replay(&replay, memory.window)?,
            memory,
        })
    }

    /// The journal's own part, if it has one.
    pub fn journal_device(&self) -> Option<&Path> {
        match &self.journal {
            Journal::Detached { device, .. } => Some(device),
            Journal::Attached { .. } => None,
        }
    }
}

/// The text of `file`: a regular file of reasonable size, in UTF-8.
fn read(file: &Path) -> Result<String, ConfigError> {
    let failed = |source: io::Error| ConfigError::Read {
        file: file.to_owned(),
        source,
    };
    let not_text = |found: String| ConfigError::NotText {
        file: file.to_owned(),
        expected: format!(
            "a TOML text of at most {}",
            size_exact(limits::FILE_BYTES_MAX)
        ),
        found,
    };

    // Asked before opening: opening a FIFO would wait for a writer.
    let kind = std::fs::metadata(file)
        .map_err(|source| failed(absent(file, source)))?
        .file_type();
    if !kind.is_file() {
        let found = if kind.is_dir() {
            "a folder"
        } else {
            "something that is not a file"
        };
        return Err(not_text(found.to_owned()));
    }
    let mut bytes = Vec::new();
    File::open(file)
        .and_then(|opened| {
            opened
                .take(limits::FILE_BYTES_MAX + 1)
                .read_to_end(&mut bytes)
        })
        .map_err(failed)?;
    if to_u64(bytes.len()) > limits::FILE_BYTES_MAX {
        return Err(not_text("a longer file".to_owned()));
    }
    String::from_utf8(bytes).map_err(|error| {
        not_text(format!(
            "bytes that are not UTF-8 at offset {}",
            error.utf8_error().valid_up_to()
        ))
    })
}

/// Says more about a file that is not there, if it reads like the name of an array: other commands take that.
fn absent(file: &Path, source: io::Error) -> io::Error {
    let name = file
        .to_str()
        .and_then(|text| text.parse::<ArrayName>().ok());
    match name {
        Some(name) if source.kind() == io::ErrorKind::NotFound => io::Error::new(
            io::ErrorKind::NotFound,
            format!(
                "no such file; expected the path of a configuration ({name}.toml?), not an array's name"
            ),
        ),
        Some(_) | None => source,
    }
}

fn read_data(section: &Section<'_>, folder: &Path) -> Result<Data, ConfigError> {
    let expected = format!("a list of 1 to {} disks or files", limits::MEMBERS_MAX);
    let list = section.need("members", &expected)?;
    let elements = list.list(&expected)?;
    if !(1..=limits::MEMBERS_MAX).contains(&elements.len()) {
        return Err(list.refuse(&expected));
    }
    let mut members: Vec<PathBuf> = Vec::with_capacity(elements.len());
    for element in elements {
        let path = element.path(folder)?;
        if let Some(first) = members.iter().position(|member| *member == path) {
            let found = format!("\"{}\", which is data.members[{first}] too", path.display());
            return Err(element.refuse_as("each disk or file once", &found));
        }
        members.push(path);
    }
    let chunk = match section.get("chunk") {
        None => 64 * KIB,
        Some(found) => found.size(
            limits::CHUNK_MIN..=limits::CHUNK_MAX,
            "a power of two",
            u64::is_power_of_two,
        )?,
    };
    Ok(Data { members, chunk })
}

fn read_journal(
    section: &Section<'_>,
    folder: &Path,
    data: &Data,
    max_io: u64,
) -> Result<Journal, ConfigError> {
    let size_of = |placement: geometry::Placement| match section.get("size") {
        None => Ok(None),
        Some(found) => {
            let members = to_u64(data.members.len());
            let least = limits::journal_size_min(placement, members, data.chunk, max_io);
            let why = least_with(max_io);
            found
                .size_from(least, &why, limits::JOURNAL_SIZE_MAX, "a size")
                .map(Some)
        }
    };

    if let Some(found) = section.get("device") {
        if found.is_list() {
            return Err(
                found.refuse("one path: a journal over several disks is not in this version")
            );
        }
        let device = found.path(folder)?;
        if let Some(member) = data.members.iter().position(|member| *member == device) {
            let found_text = format!("\"{}\", which is data.members[{member}]", device.display());
            return Err(found.refuse_as("a disk or file that is no member", &found_text));
        }
        if let Some(placement) = section.get("placement") {
            return Err(placement.refuse(
                "no placement where journal.device is given: it is for an attached journal",
            ));
        }
        return Ok(Journal::Detached {
            device,
            size: size_of(geometry::Placement::Detached)?,
        });
    }

    let placement = match section.get("placement") {
        None => Placement::End,
        Some(found) => found.word(&[
            ("start", Placement::Start),
            ("middle", Placement::Middle),
            ("end", Placement::End),
        ])?,
    };
    match size_of(placement.layout())? {
        Some(size) => Ok(Journal::Attached { size, placement }),
        None => Err(section.missing(
            "size",
            "the size of a journal on the members, like \"4GiB\", or a disk of its own as journal.device",
        )),
    }
}

fn least_with(max_io: u64) -> String {
    format!(
        "the minimum with device.max_io = \"{}\"",
        size_exact(max_io)
    )
}

fn read_device(section: &Section<'_>) -> Result<Device, ConfigError> {
    let block_size = match section.get("block_size") {
        None => BlockSize::Sector,
        Some(found) => {
            match found.number("512 or 4096, without quotes", |n| n == 512 || n == 4096)? {
                512 => BlockSize::Sector,
                _ => BlockSize::Frame,
            }
        }
    };
    let queue_depth = match section.get("queue_depth") {
        None => 128,
        Some(found) => {
            let most = u64::from(limits::QUEUE_DEPTH_MAX);
            let expected = format!("a number from 1 to {most}, without quotes");
            let depth = found.number(&expected, |depth| (1..=most).contains(&depth))?;
            u16::try_from(depth).expect("it is at most 1024")
        }
    };
    let max_io = match section.get("max_io") {
        None => 512 * KIB,
        Some(found) => found.size(
            limits::MAX_IO_MIN..=limits::MAX_IO_MAX,
            "a multiple of 4KiB",
            |size| size.is_multiple_of(FRAME),
        )?,
    };
    Ok(Device {
        block_size,
        queue_depth,
        max_io,
    })
}

fn read_commit(section: &Section<'_>) -> Result<Commit, ConfigError> {
    let sync = match section.get("sync") {
        None => SyncMode::Flush,
        Some(found) => found.word(&[("flush", SyncMode::Flush), ("always", SyncMode::Always)])?,
    };
    let interval = read_time(
        section,
        "interval",
        Duration::from_secs(5),
        limits::INTERVAL_MIN,
    )?;
    Ok(Commit { sync, interval })
}

fn read_replay(section: &Section<'_>, window: Size) -> Result<Replay, ConfigError> {
    let most = match window {
        Size::Auto => limits::WINDOW_MAX,
        Size::Bytes(window) => window,
    } / limits::ROUND_WINDOW_DIVISOR;
    let round = match section.get("round") {
        Some(found) if !found.is_auto() => {
            let rule = "\"auto\", or at most half of memory.window and a size";
            Size::Bytes(found.size(limits::ROUND_MIN..=most, rule, |_| true)?)
        }
        Some(_) | None => Size::Auto,
    };
    let fill_permille = match section.get("fill") {
        None => 500,
        Some(found) => found.permille(limits::FILL_PERMILLE_MIN..=limits::FILL_PERMILLE_MAX)?,
    };
    let stall_timeout = match section.get("stall_timeout") {
        None => Duration::ZERO,
        Some(found) => found.time(
            limits::STALL_TIMEOUT_MIN..=limits::TIME_MAX,
            Some("to wait for ever"),
        )?,
    };
    Ok(Replay {
        round,
        fill_permille,
        age: read_time(section, "age", Duration::from_secs(30), limits::AGE_MIN)?,
        idle: read_time(
            section,
            "idle",
            Duration::from_millis(200),
            limits::IDLE_MIN,
        )?,
        stall_timeout: (!stall_timeout.is_zero()).then_some(stall_timeout),
    })
}

fn read_memory(section: &Section<'_>, max_io: u64) -> Result<Memory, ConfigError> {
    let window = match section.get("window") {
        Some(found) if !found.is_auto() => {
            let least = limits::window_min(max_io);
            let why = least_with(max_io);
            Size::Bytes(found.size_from(least, &why, limits::WINDOW_MAX, "\"auto\" or a size")?)
        }
        Some(_) | None => Size::Auto,
    };
    let extents = match section.get("extents") {
        None => MIB,
        Some(found) => found.count(limits::EXTENTS_MIN..=limits::EXTENTS_MAX, "a count")?,
    };
    Ok(Memory { window, extents })
}

fn read_time(
    section: &Section<'_>,
    key: &str,
    default: Duration,
    least: Duration,
) -> Result<Duration, ConfigError> {
    section.get(key).map_or(Ok(default), |found| {
        found.time(least..=limits::TIME_MAX, None)
    })
}

/// The name of an array: part of file names, link names and command lines.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ArrayName(String);

impl ArrayName {
    /// What a name is.
    pub const RULE: &str =
        "a name of 1 to 32 characters a-z, 0-9, _ and -, the first a letter or a digit";

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ArrayName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text that is no array's name.
#[derive(Debug, thiserror::Error)]
#[error("expected {}", ArrayName::RULE)]
pub struct NotAName;

impl FromStr for ArrayName {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<ArrayName, NotAName> {
        let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let first = text.bytes().next().is_some_and(letter);
        let all = text
            .bytes()
            .all(|byte| letter(byte) || byte == b'_' || byte == b'-');
        if first && all && text.len() <= limits::NAME_CHARS_MAX {
            Ok(ArrayName(text.to_owned()))
        } else {
            Err(NotAName)
        }
    }
}
