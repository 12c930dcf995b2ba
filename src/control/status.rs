//! What an array says of itself: the answer to `ujournal status`, and its JSON.
//!
//! It is put together from two halves. [`Facts`] do not change while the array runs and are kept by
//! the control thread; [`Live`] is the snapshot that the I/O thread makes when asked, numbers only,
//! so that asking costs the requests next to nothing.
//!
//! The JSON is a contract: names stay, new ones may come. A seq is a text, `epoch.counter`, for it has
//! more bits than a JSON number is safe for.

use crate::config::ArrayName;
use crate::units::{Epoch, SEQ_COUNTER_BITS, Seq};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How an array fares.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum State {
    /// Everything is home, and the superblocks say so.
    Clean,
    /// It serves; the journal is needed.
    Dirty,
    /// It serves, but some block cannot be read or brought home.
    Degraded,
    /// Writes and flushes are answered with an error.
    Failed,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Clean => "CLEAN",
            State::Dirty => "DIRTY",
            State::Degraded => "DEGRADED",
            State::Failed => "FAILED",
        })
    }
}

/// Everything that `ujournal status` shows of one array.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The array's name.
    pub name: String,
    /// Its identity.
    pub uuid: String,
    /// How it fares.
    pub state: State,
    /// Why, where it is not well.
    pub reason: Option<String>,
    /// The daemon.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// The life that it leads.
    pub epoch: u32,
    /// Since when it serves, in seconds since 1970.
    pub started: u64,
    /// The exposed device.
    pub device: DeviceStatus,
    /// What it is made of.
    pub parts: Vec<PartStatus>,
    /// The log on disk.
    pub journal: JournalStatus,
    /// Where the newest version of each block lies.
    pub map: MapStatus,
    /// What of the journal is in RAM.
    pub window: WindowStatus,
    /// The copying home.
    pub replay: ReplayStatus,
    /// What was asked of the device.
    pub requests: RequestsStatus,
    /// What was asked of the journal and the members for it.
    pub media: MediaStatus,
    /// Errors of parts, by the clause of the crash specification that says what follows from them.
    pub errors: BTreeMap<Clause, u64>,
    /// How often a write had to wait for space in the journal.
    pub stalls: u64,
    /// Requests that have taken longer than 30 s and are not answered yet.
    pub stalled: Vec<Stalled>,
    /// What the start found and did.
    pub recovery: Option<Recovery>,
    /// Where the running device differs from the file until the next clean start.
    pub differs: Vec<Difference>,
    /// What an administrator should know before it becomes a problem.
    pub warnings: Vec<String>,
}

/// How an array stands.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub enum Standing {
    /// Its daemon answers.
    Answers(Box<Status>),
    /// Nobody does.
    Unanswered(Unanswered),
}

impl Standing {
    /// The array's name.
    pub fn name(&self) -> &str {
        match self {
            Standing::Answers(status) => &status.name,
            Standing::Unanswered(array) => &array.name,
        }
    }
}

/// What is known of an array for which nobody answers: what a status says, as far as it goes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Unanswered {
    /// The array's name.
    pub name: String,
    /// What there is instead.
    pub state: Absence,
    /// In words, and what to do.
    pub reason: Option<String>,
    /// The daemon, if there is one.
    pub pid: Option<u32>,
    /// The device, if it is known.
    pub device: Option<DeviceStatus>,
}

impl Unanswered {
    /// Nothing is known but the name.
    pub fn of(name: &ArrayName) -> Unanswered {
        Unanswered {
            name: name.as_str().to_owned(),
            state: Absence::Unknown,
            reason: None,
            pid: None,
            device: None,
        }
    }
}

/// Why nobody answers for an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Absence {
    /// Its daemon does not serve yet.
    Starting,
    /// Its daemon is on its way out.
    Stopping,
    /// There is no daemon, and whoever uses the device waits for one.
    Waiting,
    /// That cannot be found out.
    Unknown,
}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Absence::Starting => "STARTING",
            Absence::Stopping => "STOPPING",
            Absence::Waiting => "WAITING",
            Absence::Unknown => "UNKNOWN",
        })
    }
}

/// The exposed device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// `/dev/ublkbN`.
    pub block: PathBuf,
    /// `/dev/ujournal/NAME`.
    pub link: PathBuf,
    /// In bytes.
    pub size: u64,
    /// The logical block, in bytes.
    pub block_size: u32,
}

/// One part.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PartStatus {
    /// `member 0`, `journal`.
    pub role: String,
    /// Where it was found at start.
    pub path: PathBuf,
}

/// The log on disk.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct JournalStatus {
    /// Bytes of the ring.
    pub size: u64,
    /// Bytes from the tail to the head.
    pub used: u64,
    /// `used` as a part of `size`, 0 to 1.
    pub fill: f64,
    /// How old the oldest record is that is still needed.
    pub oldest_ms: Option<u64>,
    /// The newest request.
    pub last_seq: String,
    /// Up to here everything survives a power cut.
    pub durable_seq: String,
    /// Up to here everything is home.
    pub tail_seq: String,
}

/// The extent map.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MapStatus {
    /// How many there are.
    pub extents: u64,
    /// How many there may be.
    pub limit: u64,
}

/// The window.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WindowStatus {
    /// Bytes that it may hold.
    pub size: u64,
    /// Bytes that it holds.
    pub used: u64,
}

/// Replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReplayStatus {
    /// Whether a round is under way.
    pub running: bool,
    /// Bytes per second over the last few rounds.
    pub rate: u64,
    /// Rounds finished in this life.
    pub rounds: u64,
    /// Bytes written home in this life.
    pub bytes: u64,
}

/// What was asked of the device, by kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RequestsStatus {
    /// READ.
    pub read: OpStatus,
    /// WRITE.
    pub write: OpStatus,
    /// FLUSH.
    pub flush: OpStatus,
    /// DISCARD.
    pub discard: OpStatus,
    /// `WRITE_ZEROES`.
    pub write_zeroes: OpStatus,
}

/// One kind of request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct OpStatus {
    /// Answered in this life, with success or not.
    pub count: u64,
    /// Answered with an error.
    pub failed: u64,
    /// Bytes of them all.
    pub bytes: u64,
    /// How long they took; `None` before the first.
    pub latency_us: Option<Latency>,
}

/// Times in microseconds from the kernel's request to our answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Latency {
    /// Half took no longer.
    pub p50: u64,
    /// 99 % took no longer.
    pub p99: u64,
    /// 99.9 % took no longer.
    pub p999: u64,
    /// The longest.
    pub max: u64,
}

/// What was asked of the parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MediaStatus {
    /// Records written.
    pub records: u64,
    /// Bytes of them, headers and padding included.
    pub record_bytes: u64,
    /// Records that were written durably (DSYNC), so that no flush had to follow.
    pub sync_records: u64,
    /// Flushes of the journal.
    pub journal_flushes: u64,
    /// Flushes of members, each counted.
    pub member_flushes: u64,
}

/// Errors that are counted, named as in the crash model.
///
/// Clauses that name no error of their own have no count: a dead journal is J1 or J2 and the FAILED state,
/// a member that is gone and a part without space are errors of the operations on them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Clause {
    /// A write of the journal failed.
    #[serde(rename = "C-ERR-J1")]
    JournalWrite,
    /// A flush of the journal failed.
    #[serde(rename = "C-ERR-J2")]
    JournalFlush,
    /// A record could not be read back, or its checksum does not match.
    #[serde(rename = "C-ERR-J4")]
    JournalRead,
    /// A write home failed.
    #[serde(rename = "C-ERR-D1")]
    MemberWrite,
    /// Writers were failed after `stall_timeout`.
    #[serde(rename = "C-ERR-D2")]
    MemberStalled,
    /// A flush of a member failed.
    #[serde(rename = "C-ERR-D3")]
    MemberFlush,
    /// A read from home failed.
    #[serde(rename = "C-ERR-D4")]
    MemberRead,
}

impl Clause {
    /// All of them.
    pub const ALL: [Clause; 7] = [
        Clause::JournalWrite,
        Clause::JournalFlush,
        Clause::JournalRead,
        Clause::MemberWrite,
        Clause::MemberStalled,
        Clause::MemberFlush,
        Clause::MemberRead,
    ];

    /// Its place in [`Clause::ALL`].
    pub fn index(self) -> usize {
        Clause::ALL
            .iter()
            .position(|clause| *clause == self)
            .expect("every clause is in the list")
    }

    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Clause::JournalWrite => "journal writes failed",
            Clause::JournalFlush => "journal flushes failed",
            Clause::JournalRead => "journal reads failed or rotten",
            Clause::MemberWrite => "member writes failed",
            Clause::MemberStalled => "writers failed after stall_timeout",
            Clause::MemberFlush => "member flushes failed",
            Clause::MemberRead => "member reads failed",
        }
    }
}

/// How often each clause applied: fixed memory, for the I/O thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ErrorCounts([u64; Clause::ALL.len()]);

impl ErrorCounts {
    /// So many more.
    pub fn add(&mut self, clause: Clause, more: u64) {
        let place = &mut self.0[clause.index()];
        *place = place.saturating_add(more);
    }

    /// Those that happened.
    pub fn by_clause(&self) -> BTreeMap<Clause, u64> {
        Clause::ALL
            .into_iter()
            .zip(self.0)
            .filter(|(_, count)| *count > 0)
            .collect()
    }
}

/// A request that takes too long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stalled {
    /// The kernel's slot.
    pub tag: u16,
    /// For how long.
    pub ms: u64,
}

/// How a start began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartKind {
    /// After a label or a clean stop: there was nothing to recover.
    Clean,
    /// After a crash, a power cut or a planned exit that left work.
    Recovery,
    /// Of the device of a daemon that died.
    Takeover,
}

/// What a start found and did: one line in the log, and a part of the status.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Recovery {
    /// The array's name.
    pub array: String,
    /// The life that the start began.
    pub epoch: u32,
    /// How it began.
    pub kind: StartKind,
    /// What was surely durable.
    pub durable_seq: String,
    /// The last request kept; everything after it is gone.
    pub kept_seq: String,
    /// Records that are to be replayed.
    pub records_replayed: u64,
    /// Records that were found and given up.
    pub records_dropped: u64,
    /// Why.
    pub dropped_because: Option<String>,
    /// From the first lock to the first request served.
    pub ms: u64,
}

/// A setting of the running device that is not what the file says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Difference {
    /// With its section.
    pub key: String,
    /// What the file says.
    pub file: String,
    /// What holds until the next clean start.
    pub live: String,
}

/// What does not change while the array runs.
#[derive(Clone, PartialEq, Debug)]
pub struct Facts {
    /// The array's name.
    pub name: String,
    /// Its identity.
    pub uuid: uuid::Uuid,
    /// The life that began with this start.
    pub epoch: Epoch,
    /// Since when it serves.
    pub started: SystemTime,
    /// The exposed device.
    pub device: DeviceStatus,
    /// What it is made of.
    pub parts: Vec<PartStatus>,
    /// Bytes of the ring.
    pub journal_size: u64,
    /// How many extents there may be.
    pub extents_limit: u64,
    /// Bytes that the window may hold.
    pub window_size: u64,
    /// What the start found and did.
    pub recovery: Option<Recovery>,
    /// Where the running device differs from the file.
    pub differs: Vec<Difference>,
}

/// The I/O thread's snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Live {
    /// How the array fares.
    pub state: State,
    /// Why, where it is not well.
    pub reason: Option<String>,
    /// Bytes from the tail to the head.
    pub journal_used: u64,
    /// How old the oldest record is that is still needed.
    pub oldest: Option<Duration>,
    /// The newest request.
    pub last_seq: Seq,
    /// Up to here everything survives a power cut.
    pub durable_seq: Seq,
    /// Up to here everything is home.
    pub tail_seq: Seq,
    /// Extents in the map.
    pub extents: u64,
    /// Bytes in the window.
    pub window_used: u64,
    /// The copying home.
    pub replay: ReplayStatus,
    /// What was asked of the device.
    pub requests: RequestsStatus,
    /// What was asked of the parts.
    pub media: MediaStatus,
    /// Errors of parts.
    pub errors: ErrorCounts,
    /// How often a write had to wait for space in the journal.
    pub stalls: u64,
    /// Requests that have taken longer than 30 s and are not answered yet, a few of them.
    pub stalled: Vec<Stalled>,
    /// What failed last on each part on which something has.
    pub troubles: Vec<PartTrouble>,
}

/// What failed last on a part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartTrouble {
    /// Which one, in the order of [`Facts::parts`].
    pub part: usize,
    /// `write`.
    pub op: String,
    /// Bytes from its beginning; of a flush 0.
    pub offset: u64,
    /// Why, in the system's words.
    pub why: String,
    /// How many operations have failed there so far.
    pub count: u64,
}

impl PartTrouble {
    /// `/dev/sdb: cannot write at offset 4096: No space left on device (os error 28)`.
    pub fn sentence(&self, facts: &Facts) -> String {
        let path = facts.parts[self.part].path.display();
        let (op, offset, why) = (&self.op, self.offset, &self.why);
        format!("{path}: cannot {op} at offset {offset}: {why}")
    }
}

impl Status {
    /// Both halves together.
    pub fn new(facts: &Facts, live: Live) -> Status {
        let mut warnings = Vec::new();
        warnings.extend(seq_warning(live.last_seq));
        warnings.extend(live.troubles.iter().map(|trouble| {
            let count = trouble.count;
            format!(
                "{}; {count} errors of that disk so far",
                trouble.sentence(facts)
            )
        }));
        Status {
            name: facts.name.clone(),
            uuid: facts.uuid.to_string(),
            state: live.state,
            reason: live.reason,
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            epoch: facts.epoch.0,
            started: facts
                .started
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
            device: facts.device.clone(),
            parts: facts.parts.clone(),
            journal: JournalStatus {
                size: facts.journal_size,
                used: live.journal_used,
                fill: fill(live.journal_used, facts.journal_size),
                oldest_ms: live
                    .oldest
                    .map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
                last_seq: live.last_seq.to_string(),
                durable_seq: live.durable_seq.to_string(),
                tail_seq: live.tail_seq.to_string(),
            },
            map: MapStatus {
                extents: live.extents,
                limit: facts.extents_limit,
            },
            window: WindowStatus {
                size: facts.window_size,
                used: live.window_used,
            },
            replay: live.replay,
            requests: live.requests,
            media: live.media,
            errors: live.errors.by_clause(),
            stalls: live.stalls,
            stalled: live.stalled,
            recovery: facts.recovery.clone(),
            differs: facts.differs.clone(),
            warnings,
        }
    }
}

/// A part of one, in thousandths.
fn fill(used: u64, size: u64) -> f64 {
    let permille = u128::from(used.min(size)) * 1000 / u128::from(size.max(1));
    f64::from(u16::try_from(permille).expect("at most 1000")) / 1000.0
}

/// From three quarters of a life's numbers on: plan a restart, which begins a new life.
fn seq_warning(last: Seq) -> Option<String> {
    let all = 1_u64 << SEQ_COUNTER_BITS;
    let percent = u128::from(last.counter()) * 100 / u128::from(all);
    (last.counter() >= all / 4 * 3).then(|| {
        format!(
            "{percent} % of the 2^{SEQ_COUNTER_BITS} request numbers of this life are used: \
             stop and start the array before they end"
        )
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An array in the midst of its work.
    pub(crate) fn facts() -> Facts {
        Facts {
            name: "vol0".to_owned(),
            uuid: uuid::Uuid::from_u128(0x1234),
            epoch: Epoch(3),
            started: UNIX_EPOCH + Duration::from_secs(1_000_000),
            device: DeviceStatus {
                block: "/dev/ublkb0".into(),
                link: "/dev/ujournal/vol0".into(),
                size: 2_000_000_000_000,
                block_size: 512,
            },
            parts: ["member 0", "member 1", "journal"]
                .into_iter()
                .zip(["/dev/sdb", "/dev/sdc", "/dev/sdd"])
                .map(|(role, path)| PartStatus {
                    role: role.to_owned(),
                    path: path.into(),
                })
                .collect(),
            journal_size: 4 << 30,
            extents_limit: 1 << 20,
            window_size: 256 << 20,
            recovery: Some(Recovery {
                array: "vol0".to_owned(),
                epoch: 3,
                kind: StartKind::Recovery,
                durable_seq: "2.900".to_owned(),
                kept_seq: "2.1000".to_owned(),
                records_replayed: 70,
                records_dropped: 2,
                dropped_because: Some("torn record".to_owned()),
                ms: 812,
            }),
            differs: vec![Difference {
                key: "device.queue_depth".to_owned(),
                file: "64".to_owned(),
                live: "128".to_owned(),
            }],
        }
    }

    pub(crate) fn live() -> Live {
        let latency = Latency {
            p50: 90,
            p99: 1200,
            p999: 15_000,
            max: 2_500_000,
        };
        let mut errors = ErrorCounts::default();
        errors.add(Clause::MemberWrite, 2);
        Live {
            state: State::Degraded,
            reason: Some("/dev/sdc: writes fail".to_owned()),
            journal_used: 1 << 30,
            oldest: Some(Duration::from_millis(12_345)),
            last_seq: Seq::start_of(Epoch(3)).plus(4711),
            durable_seq: Seq::start_of(Epoch(3)).plus(4700),
            tail_seq: Seq::start_of(Epoch(3)).plus(17),
            extents: 12_345,
            window_used: 200 << 20,
            replay: ReplayStatus {
                running: true,
                rate: 210 << 20,
                rounds: 42,
                bytes: 9 << 30,
            },
            requests: RequestsStatus {
                read: OpStatus {
                    count: 10,
                    failed: 1,
                    bytes: 40_960,
                    latency_us: Some(latency),
                },
                write: OpStatus {
                    count: 4711,
                    failed: 0,
                    bytes: 5 << 30,
                    latency_us: Some(latency),
                },
                ..RequestsStatus::default()
            },
            media: MediaStatus {
                records: 100,
                record_bytes: 6 << 30,
                sync_records: 5,
                journal_flushes: 7,
                member_flushes: 9,
            },
            errors,
            stalls: 1,
            stalled: vec![Stalled {
                tag: 17,
                ms: 31_000,
            }],
            troubles: Vec::new(),
        }
    }

    #[test]
    fn what_failed_on_a_part_is_a_warning_with_its_path() {
        let trouble = PartTrouble {
            part: 1,
            op: "write".to_owned(),
            offset: 4096,
            why: "No space left on device (os error 28)".to_owned(),
            count: 138,
        };
        let live = Live {
            troubles: vec![trouble],
            ..live()
        };
        let status = Status::new(&facts(), live);
        let path = facts().parts[1].path.display().to_string();
        let expected = format!(
            "{path}: cannot write at offset 4096: No space left on device (os error 28); 138 errors of that disk so far"
        );
        assert!(status.warnings.contains(&expected), "{:?}", status.warnings);
    }

    #[test]
    fn the_json_has_every_promised_name_and_reads_back_as_the_same() {
        let status = Status::new(&facts(), live());
        let json = serde_json::to_value(&status).expect("JSON");
        let names: Vec<&String> = json.as_object().expect("an object").keys().collect();
        assert_eq!(
            names,
            [
                "device", "differs", "epoch", "errors", "journal", "map", "media", "name", "parts",
                "pid", "reason", "recovery", "replay", "requests", "stalled", "stalls", "started",
                "state", "uuid", "version", "warnings", "window",
            ]
        );
        assert_eq!(json["state"], "DEGRADED");
        assert_eq!(json["errors"], serde_json::json!({ "C-ERR-D1": 2 }));
        assert_eq!(json["journal"]["fill"], 0.25);
        assert_eq!(json["journal"]["last_seq"], "3.4711");
        assert_eq!(json["requests"]["write"]["latency_us"]["p999"], 15_000);
        assert_eq!(json["recovery"]["kind"], "recovery");
        assert_eq!(
            serde_json::from_value::<Status>(json).expect("read back"),
            status
        );
    }

    /// An array whose daemon was killed.
    pub(crate) fn waiting() -> Unanswered {
        Unanswered {
            state: Absence::Waiting,
            reason: Some("no daemon; ujournal start CONFIG goes on".to_owned()),
            device: Some(facts().device),
            ..Unanswered::of(&"vol0".parse().expect("a name"))
        }
    }

    #[test]
    fn where_nobody_answers_the_json_has_names_and_places_of_a_status() {
        let status = Standing::Answers(Box::new(Status::new(&facts(), live())));
        let whole = serde_json::to_value(&status).expect("JSON");
        let json = serde_json::to_value(Standing::Unanswered(waiting())).expect("JSON");
        let object = json.as_object().expect("an object");
        for (key, value) in object {
            let kind = |value: &serde_json::Value| std::mem::discriminant(value);
            assert!(
                value.is_null() || kind(value) == kind(&whole[key]),
                "{key}: {value}"
            );
        }
        assert_eq!(json["state"], "WAITING");
        assert_eq!(json["device"], whole["device"]);
        for absence in [
            Absence::Starting,
            Absence::Stopping,
            Absence::Waiting,
            Absence::Unknown,
        ] {
            let word = serde_json::to_value(absence).expect("JSON");
            assert_eq!(word, absence.to_string(), "one word everywhere");
        }
    }

    #[test]
    fn the_numbers_of_a_life_running_out_is_a_warning_from_three_quarters_on() {
        let at = |counter: u64| seq_warning(Seq(Seq::start_of(Epoch(9)).0 + counter));
        assert_eq!(at(0), None);
        assert_eq!(at((1 << 44) / 4 * 3 - 1), None);
        assert!(
            at((1 << 44) / 4 * 3)
                .expect("a warning")
                .starts_with("75 % of the ")
        );
        assert!(
            at((1 << 44) - 1)
                .expect("a warning")
                .starts_with("99 % of the ")
        );
    }

    #[test]
    fn a_fill_level_lies_between_nothing_and_all() {
        for (used, size, level) in [(0, 0, 0.0), (5, 0, 0.0), (1, 4, 0.25), (9, 4, 1.0)] {
            assert!((fill(used, size) - level).abs() < 1e-9, "{used} of {size}");
        }
    }
}
