//! Status for people: aligned, calm, every number with its unit.

use super::progress::time_rough;
use super::status::{
    DeviceStatus, Difference, Latency, OpStatus, Recovery, Standing, StartKind, Status, Unanswered,
};
use crate::config::quantity::size_rough;
use std::fmt::Write as _;
use std::time::Duration;

/// One array in full. `now` is in seconds since 1970.
pub fn status(status: &Status, now: u64) -> String {
    let mut text = String::new();
    let up = time_rough(Duration::from_secs(now.saturating_sub(status.started)));
    line(&mut text, &format!("{}: {}", status.name, status.state));
    if let Some(reason) = &status.reason {
        row(&mut text, "because", reason);
    }
    for warning in &status.warnings {
        row(&mut text, "warning", warning);
    }
    row(&mut text, "device", &device(&status.device));
    for difference in &status.differs {
        let Difference { key, file, live } = difference;
        row(
            &mut text,
            "",
            &format!("{key} is {live} until the next clean start, the file says {file}"),
        );
    }
    for (index, part) in status.parts.iter().enumerate() {
        let label = if index == 0 { "parts" } else { "" };
        row(
            &mut text,
            label,
            &format!("{:<9} {}", part.role, part.path.display()),
        );
    }
    row(
        &mut text,
        "daemon",
        &format!(
            "pid {}, version {}, up {up}, epoch {}",
            status.pid, status.version, status.epoch
        ),
    );
    journal(&mut text, status);
    requests(&mut text, status);
    trouble(&mut text, status);
    if let Some(recovery) = &status.recovery {
        row(&mut text, "start", &self::recovery(recovery));
    }
    text
}

/// The same of one for which nobody answers.
pub fn unanswered(array: &Unanswered) -> String {
    let mut text = String::new();
    line(&mut text, &format!("{}: {}", array.name, array.state));
    if let Some(reason) = &array.reason {
        row(&mut text, "because", reason);
    }
    if let Some(found) = &array.device {
        row(&mut text, "device", &device(found));
    }
    if let Some(pid) = array.pid {
        row(&mut text, "daemon", &format!("pid {pid}"));
    }
    text
}

fn device(device: &DeviceStatus) -> String {
    format!(
        "{} ({}), {}, blocks of {} bytes",
        device.link.display(),
        device.block.display(),
        size_rough(device.size),
        device.block_size
    )
}

fn journal(text: &mut String, status: &Status) {
    let journal = &status.journal;
    let oldest = journal
        .oldest_ms
        .map_or("nothing to replay".to_owned(), |ms| {
            format!("oldest record {} ago", time_of_ms(ms))
        });
    row(
        text,
        "journal",
        &format!(
            "{} of {} ({} %), {oldest}",
            size_rough(journal.used),
            size_rough(journal.size),
            percent(journal.used, journal.size)
        ),
    );
    row(
        text,
        "seq",
        &format!(
            "last {}, durable {}, home {}",
            journal.last_seq, journal.durable_seq, journal.tail_seq
        ),
    );
    let replay = &status.replay;
    row(
        text,
        "replay",
        &format!(
            "{}, {}/s, {} rounds, {} brought home",
            if replay.running { "running" } else { "at rest" },
            size_rough(replay.rate),
            grouped(replay.rounds),
            size_rough(replay.bytes)
        ),
    );
    row(
        text,
        "memory",
        &format!(
            "{} of {} extents ({} %), window {} of {}",
            grouped(status.map.extents),
            grouped(status.map.limit),
            percent(status.map.extents, status.map.limit),
            size_rough(status.window.used),
            size_rough(status.window.size)
        ),
    );
    let media = &status.media;
    row(
        text,
        "written",
        &format!(
            "{} records, {}, {} of them durably; {} journal flushes, {} member flushes, {} waits for space",
            grouped(media.records),
            size_rough(media.record_bytes),
            grouped(media.sync_records),
            grouped(media.journal_flushes),
            grouped(media.member_flushes),
            grouped(status.stalls)
        ),
    );
}

fn requests(text: &mut String, status: &Status) {
    let header = format!(
        "{:<12} {:>13} {:>10} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "", "count", "bytes", "failed", "p50", "p99", "p99.9", "max"
    );
    row(text, "requests", &header);
    let all = &status.requests;
    for (name, op) in [
        ("read", &all.read),
        ("write", &all.write),
        ("flush", &all.flush),
        ("discard", &all.discard),
        ("write zeroes", &all.write_zeroes),
    ] {
        row(text, "", &request(name, op));
    }
}

fn request(name: &str, op: &OpStatus) -> String {
    let bytes = if op.bytes == 0 {
        "-".to_owned()
    } else {
        size_rough(op.bytes)
    };
    let times = op.latency_us.map_or(
        [
            "-".to_owned(),
            "-".to_owned(),
            "-".to_owned(),
            "-".to_owned(),
        ],
        |latency| {
            let Latency {
                p50,
                p99,
                p999,
                max,
            } = latency;
            [p50, p99, p999, max].map(time_of_us)
        },
    );
    let [p50, p99, p999, max] = times;
    format!(
        "{name:<12} {:>13} {bytes:>10} {:>8} {p50:>8} {p99:>8} {p999:>8} {max:>8}",
        grouped(op.count),
        grouped(op.failed)
    )
}

fn trouble(text: &mut String, status: &Status) {
    let errors: Vec<String> = status
        .errors
        .iter()
        .map(|(clause, count)| format!("{} {}", grouped(*count), clause.words()))
        .collect();
    row(
        text,
        "errors",
        &if errors.is_empty() {
            "none".to_owned()
        } else {
            errors.join(", ")
        },
    );
    for stalled in &status.stalled {
        row(
            text,
            "",
            &format!(
                "the request in slot {} has waited for {}",
                stalled.tag,
                time_of_ms(stalled.ms)
            ),
        );
    }
}

/// What a start found and did, in words.
pub fn recovery(recovery: &Recovery) -> String {
    let how = match recovery.kind {
        StartKind::Clean => "after a clean stop",
        StartKind::Recovery => "recovered",
        StartKind::Takeover => "taken over from a daemon that died",
    };
    let mut text = format!(
        "{how} in {}, durable {}, kept up to {}, {} records to replay",
        time_of_ms(recovery.ms),
        recovery.durable_seq,
        recovery.kept_seq,
        grouped(recovery.records_replayed)
    );
    if recovery.records_dropped > 0 {
        let because = recovery.dropped_because.as_deref().unwrap_or("not durable");
        text.push_str(&format!(
            ", {} dropped ({because})",
            grouped(recovery.records_dropped)
        ));
    }
    text
}

/// One line each, under a header; a sentence for none.
pub fn list(arrays: &[Standing]) -> String {
    if arrays.is_empty() {
        return "no running arrays\n".to_owned();
    }
    let mut rows = vec![Listed {
        columns: ["NAME", "STATE", "DEVICE"].map(str::to_owned),
        rest: Rest::Columns(["SIZE", "FILL", "PID"].map(str::to_owned)),
    }];
    rows.extend(arrays.iter().map(listed));
    let widths = [0, 1, 2].map(|column| width(rows.iter().map(|row| &row.columns[column])));
    let numbers = |column: usize| {
        rows.iter().filter_map(move |row| match &row.rest {
            Rest::Columns(columns) => Some(&columns[column]),
            Rest::Words(_) => None,
        })
    };
    let rest_widths = [0, 1, 2].map(|column| width(numbers(column)));
    let mut text = String::new();
    for row in &rows {
        let mut cells = padded(&row.columns, widths);
        match &row.rest {
            Rest::Columns(columns) => cells.extend(padded(columns, rest_widths)),
            Rest::Words(words) => cells.push(words.clone()),
        }
        line(&mut text, cells.join("  ").trim_end());
    }
    text
}

/// A line of `list`: what every array has, and what only one that answers has, or words in its place.
struct Listed {
    columns: [String; 3],
    rest: Rest,
}

enum Rest {
    Columns([String; 3]),
    Words(String),
}

fn listed(array: &Standing) -> Listed {
    match array {
        Standing::Answers(status) => Listed {
            columns: [
                status.name.clone(),
                status.state.to_string(),
                status.device.block.display().to_string(),
            ],
            rest: Rest::Columns([
                size_rough(status.device.size),
                format!("{} %", percent(status.journal.used, status.journal.size)),
                status.pid.to_string(),
            ]),
        },
        Standing::Unanswered(array) => {
            let device = array.device.as_ref();
            let pid = array.pid.map(|pid| format!("pid {pid}"));
            Listed {
                columns: [
                    array.name.clone(),
                    array.state.to_string(),
                    device.map_or("-".to_owned(), |device| device.block.display().to_string()),
                ],
                rest: Rest::Words(array.reason.clone().or(pid).unwrap_or_default()),
            }
        }
    }
}

fn width<'a>(cells: impl Iterator<Item = &'a String>) -> usize {
    cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
}

fn padded(cells: &[String; 3], widths: [usize; 3]) -> Vec<String> {
    let pairs = cells.iter().zip(widths);
    pairs
        .map(|(cell, width)| format!("{cell:<width$}"))
        .collect()
}

fn line(text: &mut String, content: &str) {
    text.push_str(content);
    text.push('\n');
}

fn row(text: &mut String, label: &str, content: &str) {
    line(text, format!("  {label:<9} {content}").trim_end());
}

fn percent(part: u64, whole: u64) -> u64 {
    let percent = u128::from(part.min(whole)) * 100 / u128::from(whole.max(1));
    u64::try_from(percent).expect("at most 100")
}

/// `12,345,678`.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn time_of_us(us: u64) -> String {
    let mut text = String::new();
    let written = match us {
        0..1000 => write!(text, "{us} us"),
        1000..10_000 => write!(text, "{}.{} ms", us / 1000, us % 1000 / 100),
        10_000..1_000_000 => write!(text, "{} ms", us / 1000),
        1_000_000..10_000_000 => write!(text, "{}.{} s", us / 1_000_000, us % 1_000_000 / 100_000),
        10_000_000.. => write!(text, "{} s", us / 1_000_000),
    };
    written.expect("a String takes everything");
    text
}

fn time_of_ms(ms: u64) -> String {
    if ms < 10_000 {
        time_of_us(ms * 1000)
    } else {
        time_rough(Duration::from_millis(ms))
    }
}

#[cfg(test)]
mod tests {
    use super::super::status::Absence;
    use super::super::status::tests::{facts, live, waiting};
    use super::*;

    #[test]
    fn a_status_is_shown_in_full() {
        let mut shown = Status::new(&facts(), live());
        shown.pid = 1234;
        shown.version = "0.1.0".to_owned();
        shown.warnings = vec!["the sky is falling".to_owned()];
        let expected = "\
vol0: DEGRADED
  because   /dev/sdc: writes fail
  warning   the sky is falling
  device    /dev/ujournal/vol0 (/dev/ublkb0), 1.8 TiB, blocks of 512 bytes
            device.queue_depth is 128 until the next clean start, the file says 64
  parts     member 0  /dev/sdb
            member 1  /dev/sdc
            journal   /dev/sdd
  daemon    pid 1234, version 0.1.0, up 2 h 5 min, epoch 3
  journal   1.0 GiB of 4.0 GiB (25 %), oldest record 12 s ago
  seq       last 3.4711, durable 3.4700, home 3.17
  replay    running, 210 MiB/s, 42 rounds, 9.0 GiB brought home
  memory    12,345 of 1,048,576 extents (1 %), window 200 MiB of 256 MiB
  written   100 records, 6.0 GiB, 5 of them durably; 7 journal flushes, 9 member flushes, 1 waits for space
  requests                       count      bytes   failed      p50      p99    p99.9      max
            read                    10   40.0 KiB        1    90 us   1.2 ms    15 ms    2.5 s
            write                4,711    5.0 GiB        0    90 us   1.2 ms    15 ms    2.5 s
            flush                    0          -        0        -        -        -        -
            discard                  0          -        0        -        -        -        -
            write zeroes             0          -        0        -        -        -        -
  errors    2 member writes failed
            the request in slot 17 has waited for 31 s
  start     recovered in 812 ms, durable 2.900, kept up to 2.1000, 70 records to replay, 2 dropped (torn record)
";
        assert_eq!(status(&shown, 1_007_500), expected);
        // A clock that was set back does no harm.
        assert!(status(&shown, 0).contains("up 0 s"));
    }

    #[test]
    fn a_list_is_aligned_and_says_why_nobody_answers() {
        let one = Status::new(&facts(), live());
        let stopping = Unanswered {
            name: "a-rather-long-name".to_owned(),
            state: Absence::Stopping,
            reason: None,
            pid: Some(12),
            ..waiting()
        };
        let starting = Unanswered {
            name: "c".to_owned(),
            state: Absence::Starting,
            device: None,
            ..stopping.clone()
        };
        let pid = one.pid;
        let arrays = [
            Standing::Unanswered(stopping),
            Standing::Answers(Box::new(one)),
            Standing::Unanswered(starting),
            Standing::Unanswered(waiting()),
        ];
        let expected = format!(
            "\
NAME                STATE     DEVICE       SIZE     FILL  PID
a-rather-long-name  STOPPING  /dev/ublkb0  pid 12
vol0                DEGRADED  /dev/ublkb0  1.8 TiB  25 %  {pid}
c                   STARTING  -            pid 12
vol0                WAITING   /dev/ublkb0  no daemon; ujournal start CONFIG goes on
"
        );
        assert_eq!(list(&arrays), expected);
        assert_eq!(list(&[]), "no running arrays\n");
    }

    #[test]
    fn of_an_array_for_which_nobody_answers_is_shown_what_is_known() {
        assert_eq!(
            unanswered(&waiting()),
            "\
vol0: WAITING
  because   no daemon; ujournal start CONFIG goes on
  device    /dev/ujournal/vol0 (/dev/ublkb0), 1.8 TiB, blocks of 512 bytes
"
        );
        let starting = Unanswered {
            state: Absence::Starting,
            reason: None,
            pid: Some(12),
            device: None,
            ..waiting()
        };
        assert_eq!(
            unanswered(&starting),
            "vol0: STARTING\n  daemon    pid 12\n"
        );
    }

    #[test]
    fn numbers_are_grouped_and_times_short() {
        for (n, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(grouped(n), text);
        }
        for (us, text) in [
            (0, "0 us"),
            (999, "999 us"),
            (1500, "1.5 ms"),
            (15_000, "15 ms"),
            (2_500_000, "2.5 s"),
            (31_000_000, "31 s"),
        ] {
            assert_eq!(time_of_us(us), text);
        }
    }
}
