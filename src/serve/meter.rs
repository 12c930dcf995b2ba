//! What requests cost: counts, bytes and latencies by kind, in fixed memory.

use crate::control::status::{Latency, OpStatus, RequestsStatus};
use crate::engine::request::{Op, Outcome, Request, Tag};
use crate::units::SECTOR;
use hdrhistogram::Histogram;
use std::time::Duration;

/// The longest time that is told apart: an hour, in microseconds.
const LONGEST_US: u64 = 3_600_000_000;

/// The kinds of requests, as places in a list.
const KINDS: usize = 5;

fn kind_of(op: Op) -> usize {
    match op {
        Op::Read => 0,
        Op::Write => 1,
        Op::Flush => 2,
        Op::Discard => 3,
        Op::WriteZeroes(_) => 4,
    }
}

#[derive(Debug)]
struct Kind {
    count: u64,
    failed: u64,
    bytes: u64,
    times: Histogram<u64>,
}

impl Kind {
    fn new() -> Kind {
        let times = Histogram::new_with_bounds(1, LONGEST_US, 2).expect("these bounds are legal");
        Kind {
            count: 0,
            failed: 0,
            bytes: 0,
            times,
        }
    }

    fn status(&self) -> OpStatus {
        let at = |quantile| self.times.value_at_quantile(quantile);
        OpStatus {
            count: self.count,
            failed: self.failed,
            bytes: self.bytes,
            latency_us: (self.count > 0).then(|| Latency {
                p50: at(0.5),
                p99: at(0.99),
                p999: at(0.999),
                max: self.times.max(),
            }),
        }
    }
}

/// See the head of the file.
#[derive(Debug)]
pub(super) struct Meter {
    kinds: [Kind; KINDS],
    /// For each tag: the kind, the bytes and the beginning of what it holds.
    tags: Vec<Option<(usize, u64, Duration)>>,
}

impl Meter {
    pub(super) fn new(depth: u16) -> Meter {
        Meter {
            kinds: std::array::from_fn(|_| Kind::new()),
            tags: vec![None; usize::from(depth)],
        }
    }

    pub(super) fn begins(&mut self, request: &Request, now: Duration) {
        let bytes = u64::from(request.sectors) * SECTOR;
        self.tags[request.tag.index()] = Some((kind_of(request.op), bytes, now));
    }

    pub(super) fn ends(&mut self, tag: Tag, outcome: Outcome, now: Duration) {
        let Some((kind, bytes, since)) = self.tags[tag.index()].take() else {
            return;
        };
        let kind = &mut self.kinds[kind];
        kind.count += 1;
        kind.failed += u64::from(outcome != Outcome::Done);
        kind.bytes += bytes;
        let micros = u64::try_from(now.saturating_sub(since).as_micros()).unwrap_or(LONGEST_US);
        kind.times.saturating_record(micros.max(1));
    }

    pub(super) fn requests(&self) -> RequestsStatus {
        let [read, write, flush, discard, write_zeroes] = self.kinds.each_ref().map(Kind::status);
        RequestsStatus {
            read,
            write,
            flush,
            discard,
            write_zeroes,
        }
    }

    /// Requests that have waited for at least `limit`, and for how many milliseconds.
    pub(super) fn stalled(
        &self,
        now: Duration,
        limit: Duration,
    ) -> impl Iterator<Item = (Tag, u64)> + '_ {
        self.tags.iter().zip(0..).filter_map(move |(held, tag)| {
            let waited = now.saturating_sub((*held)?.2);
            (waited >= limit).then(|| {
                (
                    Tag(tag),
                    u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
                )
            })
        })
    }
}

/// Bytes a second since it was last asked.
#[derive(Debug, Default)]
pub(super) struct Rate {
    at: Duration,
    bytes: u64,
    rate: u64,
}

impl Rate {
    /// The rate, from a count that only grows. Asked again within a tenth of a second it says the same.
    pub(super) fn update(&mut self, now: Duration, bytes: u64) -> u64 {
        let passed = now.saturating_sub(self.at);
        if passed >= Duration::from_millis(100) {
            let micros = passed.as_micros().max(1);
            let rate = u128::from(bytes - self.bytes) * 1_000_000 / micros;
            *self = Rate {
                at: now,
                bytes,
                rate: u64::try_from(rate).unwrap_or(u64::MAX),
            };
        }
        self.rate
    }
}
