//! The oracle: what the device may hold, exactly.
//!
//! Replies to state-changing requests leave in the order of their seqs (C-DUR-5), so the order of the
//! replies *is* the order of the log, and the oracle needs no word from the engine:
//!
//! ```text
//!   replied   1 2 3 4 5 6 7 8 ... n          open: received, not answered, in an unknown order
//!                   ^ d: covered by an answered FLUSH or FUA
//!
//!   after a power cut     Image(p) for one p from d to n, the same for all sectors; or
//!                         Image(n) and then some open requests, each whole, in some order
//!   after a process crash the same with d = n
//!   a READ                each sector as it was at some moment between its arrival and its answer
//! ```
//!
//! A request that was answered with an error may be visible or not after a crash, as one unit.
//!
//! Time here is the number of answered changes. A life begins with [`History::begin_life`]: what a
//! recovery has shown is the past for what follows it (C-REP-4), and no version that it did not show can
//! ever come back (C-ORD-4), because it is then unknown here.
//!
//! Rules 1 to 5 of the contract's own checker, which does not lean on the order of replies, are in
//! [`super::rules`]; both are asked.

use crate::sim::stamp::Version;
use crate::units::{Lba, to_u64, to_usize};
use std::collections::BTreeMap;
use std::ops::Range;

/// A change of the device's content: all these sectors become this version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// What they become; [`Version::ZEROES`] for a discard.
    pub version: Version,
    /// Which sectors.
    pub sectors: Range<u64>,
}

/// What is asked of the device, as far as the oracle cares.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Asked {
    /// WRITE, `WRITE_ZEROES` or DISCARD.
    Change(Change, Fua),
    /// READ of these sectors.
    Read(Range<u64>),
    /// FLUSH.
    Flush,
}

/// Whether a change is durable once it is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fua {
    /// Only after a flush.
    No,
    /// It and all before it.
    Yes,
}

/// Which request of the history: never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// What is wrong.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    /// A version that cannot be there: never written there, or only before this life began.
    #[error("sector {sector} holds {found}, which nothing in this life can have left there")]
    Unknown {
        /// Where.
        sector: Lba,
        /// What is there.
        found: Version,
    },
    /// A version that had been superseded durably.
    #[error("sector {sector} holds {found}; at the durable point it held {expected}")]
    Lost {
        /// Where.
        sector: Lba,
        /// What is there.
        found: Version,
        /// What was there at the durable point.
        expected: Version,
    },
    /// Two sectors that no one moment explains.
    #[error(
        "no prefix: sector {early} ({early_version}) is from before change {before}, \
         sector {late} ({late_version}) from change {after} or later"
    )]
    Hole {
        /// A sector whose version ends at `before`.
        early: Lba,
        /// What it holds.
        early_version: Version,
        /// The change that superseded it.
        before: u64,
        /// A sector whose version begins at `after`.
        late: Lba,
        /// What it holds.
        late_version: Version,
        /// The change that made it.
        after: u64,
    },
    /// A request of which one sector is visible and another is not.
    #[error("half a request: sector {shown} holds {version}, sector {hidden} still {found}")]
    Torn {
        /// A sector that shows it.
        shown: Lba,
        /// The request's version.
        version: Version,
        /// A sector of the same request that does not.
        hidden: Lba,
        /// What that one holds.
        found: Version,
    },
    /// Unanswered requests are visible, but not all answered ones are.
    #[error(
        "sector {open} shows the unanswered {version}, but sector {sector} holds {found} and not {expected}"
    )]
    NotAllAnswered {
        /// A sector that shows an unanswered request.
        open: Lba,
        /// Its version.
        version: Version,
        /// A sector that lacks the newest answered version.
        sector: Lba,
        /// What it holds.
        found: Version,
        /// What it should hold.
        expected: Version,
    },
    /// A read showed what was not there between its arrival and its answer.
    #[error("read of sector {sector} showed {found}; it held {} to {}", held.0, held.1)]
    Read {
        /// Where.
        sector: Lba,
        /// What was shown.
        found: Version,
        /// What it held when the read arrived and when it was answered.
        held: (Version, Version),
    },
    /// A rule of the contract's checker.
    #[error("rule {rule}: {what}")]
    Rule {
        /// Its number.
        rule: u8,
        /// What was found.
        what: String,
    },
}

/// Which moments explain an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Explained {
    /// The least p for which it is Image(p).
    pub prefix: u64,
    /// How many unanswered requests are visible.
    pub open_visible: u64,
}

/// How the history was interrupted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crash {
    /// What the media did not hold is gone.
    Power,
    /// Only the program is gone.
    Process,
}

#[derive(Clone, Debug)]
struct Open {
    asked: Asked,
    /// How many changes had been answered when it arrived.
    at: u64,
    /// Which event its arrival was.
    arrival: u64,
}

/// A version of one sector: what it holds from change `index` on.
#[derive(Clone, Copy, Debug)]
struct Applied {
    index: u64,
    /// Which event the arrival of that change was.
    arrival: u64,
    version: Version,
}

/// A change that was answered with an error.
#[derive(Clone, Debug)]
struct Doubtful {
    change: Change,
    /// How many changes had been answered when it arrived.
    at: u64,
    /// Which event its failure was.
    failure: u64,
}

/// One life of the device as its user has seen it.
#[derive(Clone, Debug)]
pub struct History {
    /// What each sector held when the life began.
    base: Vec<Version>,
    /// Counts arrivals and failures.
    events: u64,
    /// What was written to each sector since, in order.
    applied: Vec<Vec<Applied>>,
    answered: u64,
    durable: u64,
    open: BTreeMap<RequestId, Open>,
    doubtful: Vec<Doubtful>,
    always_durable: bool,
}

impl History {
    /// A device that holds `base`. With `always_durable`, an answer alone means durable.
    pub fn new(base: Vec<Version>, always_durable: bool) -> History {
        History {
            applied: vec![Vec::new(); base.len()],
            base,
            events: 0,
            answered: 0,
            durable: 0,
            open: BTreeMap::new(),
            doubtful: Vec::new(),
            always_durable,
        }
    }

    /// Forgets all but `image`, which a recovery has shown. Open requests are forgotten too: those that
    /// are issued again arrive again.
    pub fn begin_life(&mut self, image: Vec<Version>) {
        assert_eq!(image.len(), self.base.len());
        *self = History::new(image, self.always_durable);
    }

    /// How many changes were answered.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// How many of them are certainly durable.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// How many sectors the device has.
    pub fn sectors(&self) -> u64 {
        to_u64(self.base.len())
    }

    /// What a sector holds now.
    pub fn newest(&self, sector: u64) -> Version {
        self.at(sector, self.answered)
    }

    /// What a sector holds in Image(`p`).
    fn at(&self, sector: u64, p: u64) -> Version {
        let sector = to_usize(sector);
        let after = self.applied[sector].partition_point(|applied| applied.index <= p);
        if after == 0 {
            self.base[sector]
        } else {
            self.applied[sector][after - 1].version
        }
    }

    /// All of the newest content.
    pub fn newest_image(&self) -> Vec<Version> {
        (0..self.sectors()).map(|s| self.newest(s)).collect()
    }

    /// A request arrives.
    pub fn received(&mut self, id: RequestId, asked: Asked) {
        self.events += 1;
        let open = Open {
            asked,
            at: self.answered,
            arrival: self.events,
        };
        let before = self.open.insert(id, open);
        assert!(before.is_none(), "a request arrives once");
    }

    /// A request is answered with success; `shown` is what a READ showed.
    pub fn done(&mut self, id: RequestId, shown: &[Version]) -> Result<(), Violation> {
        let open = self.open.remove(&id).expect("an answer has a request");
        match open.asked {
            Asked::Change(change, fua) => {
                self.answered += 1;
                for sector in change.sectors {
                    self.applied[to_usize(sector)].push(Applied {
                        index: self.answered,
                        arrival: open.arrival,
                        version: change.version,
                    });
                }
                if self.always_durable || fua == Fua::Yes {
                    self.durable = self.answered;
                }
                Ok(())
            }
            Asked::Flush => {
                self.durable = self.durable.max(open.at);
                Ok(())
            }
            Asked::Read(sectors) => self.check_read(sectors, open.at, shown),
        }
    }

    /// A request is answered with an error.
    pub fn failed(&mut self, id: RequestId) {
        let open = self.open.remove(&id).expect("an answer has a request");
        if let Asked::Change(change, _) = open.asked {
            self.events += 1;
            self.doubtful.push(Doubtful {
                change,
                at: open.at,
                failure: self.events,
            });
        }
    }

    /// Everything that was answered up to change `through` has become durable without a FLUSH.
    pub fn aged(&mut self, through: u64) {
        assert!(through <= self.answered);
        self.durable = self.durable.max(through);
    }

    fn check_read(&self, sectors: Range<u64>, at: u64, shown: &[Version]) -> Result<(), Violation> {
        assert_eq!(to_u64(shown.len()), sectors.end - sectors.start);
        for (sector, found) in sectors.zip(shown) {
            let first = self.at(sector, at);
            let applied = &self.applied[to_usize(sector)];
            let since = applied.partition_point(|applied| applied.index <= at);
            let known = first == *found
                || applied[since..]
                    .iter()
                    .any(|applied| applied.version == *found);
            if !known {
                return Err(Violation::Read {
                    sector: Lba(sector),
                    found: *found,
                    held: (first, self.newest(sector)),
                });
            }
        }
        Ok(())
    }

    /// Whether `image`, read after a recovery, is one that the contract allows.
    pub fn check(&self, image: &[Version], crash: Crash) -> Result<Explained, Violation> {
        assert_eq!(image.len(), self.base.len());
        let from = match crash {
            Crash::Power => self.durable,
            Crash::Process => self.answered,
        };
        if let Some(prefix) = self.find_prefix(image, from) {
            return Ok(Explained {
                prefix,
                open_visible: 0,
            });
        }
        match self.peel(image) {
            Ok(open_visible) => Ok(Explained {
                prefix: self.answered,
                open_visible,
            }),
            Err(unexplained) => Err(self.diagnose(image, from, unexplained)),
        }
    }

    /// The moments from `from` on at which `sector` held `found`.
    fn moments(
        &self,
        sector: u64,
        found: Version,
        from: u64,
    ) -> impl Iterator<Item = Range<u64>> + '_ {
        let applied = &self.applied[to_usize(sector)];
        let base = Applied {
            index: 0,
            arrival: 0,
            version: self.base[to_usize(sector)],
        };
        let mut end = self.answered + 1;
        // Newest first, and no further back than the version that `from` itself shows.
        let written = applied
            .iter()
            .rev()
            .copied()
            .chain([base])
            .map(move |applied| {
                let range = applied.index..end;
                end = applied.index;
                (applied.version, range)
            })
            .take_while(move |(_, range)| range.end > from)
            .filter(move |(version, _)| *version == found)
            .map(move |(_, range)| range.start.max(from)..range.end);
        written.chain(self.doubtful_moments(sector, found, from))
    }

    /// A change that failed holds from any moment after it arrived until one that arrived after its
    /// failure.
    fn doubtful_moments(
        &self,
        sector: u64,
        found: Version,
        from: u64,
    ) -> impl Iterator<Item = Range<u64>> + '_ {
        self.doubtful
            .iter()
            .filter(move |doubtful| {
                doubtful.change.version == found && doubtful.change.sectors.contains(&sector)
            })
            .map(move |doubtful| {
                let end = self.applied[to_usize(sector)]
                    .iter()
                    .find(|applied| applied.arrival > doubtful.failure)
                    .map_or(self.answered + 1, |applied| applied.index);
                doubtful.at.max(from)..end
            })
            .filter(|range| !range.is_empty())
    }

    /// The least p, at least `from`, for which `image` is Image(p).
    fn find_prefix(&self, image: &[Version], from: u64) -> Option<u64> {
        // For each moment, how many sectors more, or fewer, than for the one before agree with it.
        let mut steps = vec![0_i64; to_usize(self.answered - from) + 2];
        let mut ranges = Vec::new();
        for (sector, found) in (0..).zip(image) {
            // Where several versions look alike, the sector still counts once for each moment.
            ranges.clear();
            ranges.extend(self.moments(sector, *found, from));
            ranges.sort_unstable_by_key(|range| range.start);
            let mut counted = from;
            for range in &ranges {
                let start = range.start.max(counted);
                if start < range.end {
                    steps[to_usize(start - from)] += 1;
                    steps[to_usize(range.end - from)] -= 1;
                    counted = range.end;
                }
            }
        }
        let all = i64::try_from(image.len()).expect("a simulated device is small");
        let mut agree = 0;
        steps
            .iter()
            .position(|step| {
                agree += step;
                agree == all
            })
            .map(|at| from + to_u64(at))
            .filter(|_| self.doubtful_are_whole(image))
    }

    /// Whether no failed change shows in one sector and is missing, without excuse, in another.
    fn doubtful_are_whole(&self, image: &[Version]) -> bool {
        self.doubtful.iter().all(|doubtful| {
            let change = &doubtful.change;
            let shows = |s: u64| image[to_usize(s)] == change.version;
            change.version == Version::ZEROES
                || !change.sectors.clone().any(shows)
                || change
                    .sectors
                    .clone()
                    .all(|sector| shows(sector) || self.may_supersede(sector, image, doubtful.at))
        })
    }

    /// Whether what `sector` shows may be newer than a change that arrived after `at` answers.
    fn may_supersede(&self, sector: u64, image: &[Version], at: u64) -> bool {
        let found = image[to_usize(sector)];
        let unanswered =
            |change: &Change| change.version == found && change.sectors.contains(&sector);
        self.moments(sector, found, at + 1)
            .any(|range| range.start > at)
            || self.doubtful.iter().any(|d| unanswered(&d.change))
            || self.open_changes().any(unanswered)
    }

    fn open_changes(&self) -> impl Iterator<Item = &Change> {
        self.open.values().filter_map(|open| match &open.asked {
            Asked::Change(change, _) => Some(change),
            Asked::Read(_) | Asked::Flush => None,
        })
    }

    /// Explains `image` as Image(n) and then open requests in some order; how many, or the sectors that
    /// stay unexplained.
    ///
    /// Taken off from the last one backwards: a change can be the last one iff every sector of it shows
    /// it, or is hidden by one that was taken off before. Taking one off never hinders another.
    fn peel(&self, image: &[Version]) -> Result<u64, Vec<bool>> {
        let n = self.answered;
        let newest = |change: &Change| {
            let mut sectors = change.sectors.clone();
            sectors.all(|s| self.doubtful_moments(s, change.version, n).next().is_some())
        };
        let failed = self.doubtful.iter().map(|doubtful| &doubtful.change);
        let mut unanswered: Vec<&Change> = self
            .open_changes()
            .chain(failed.filter(|change| newest(change)))
            .collect();
        let mut hidden = vec![false; image.len()];
        let mut taken = 0;
        loop {
            let last = unanswered.iter().position(|change| {
                change
                    .sectors
                    .clone()
                    .map(to_usize)
                    .all(|s| hidden[s] || image[s] == change.version)
            });
            let Some(last) = last else { break };
            for sector in unanswered.swap_remove(last).sectors.clone() {
                hidden[to_usize(sector)] = true;
            }
            taken += 1;
        }
        let explained = |sector: u64| {
            let found = image[to_usize(sector)];
            hidden[to_usize(sector)] || self.moments(sector, found, self.answered).next().is_some()
        };
        if (0..self.sectors()).all(explained) && self.doubtful_are_whole(image) {
            Ok(taken)
        } else {
            Err(hidden)
        }
    }

    /// Says what is wrong with an image that nothing explains, as closely as can be.
    fn diagnose(&self, image: &[Version], from: u64, hidden: Vec<bool>) -> Violation {
        let unanswered: Vec<&Change> = self
            .open_changes()
            .chain(self.doubtful.iter().map(|doubtful| &doubtful.change))
            .collect();
        let shows_open = |sector: u64| {
            unanswered.iter().find(|change| {
                change.version == image[to_usize(sector)] && change.sectors.contains(&sector)
            })
        };
        // Each sector by itself.
        let mut early: Option<(u64, u64)> = None;
        let mut late: Option<(u64, u64)> = None;
        for (sector, found) in (0..).zip(image) {
            let (low, high) = self
                .moments(sector, *found, from)
                .fold((u64::MAX, 0), |(low, high), range| {
                    (low.min(range.start), high.max(range.end))
                });
            if low == u64::MAX {
                if shows_open(sector).is_some() {
                    continue;
                }
                let before = self.moments(sector, *found, 0).next();
                return match before {
                    None => Violation::Unknown {
                        sector: Lba(sector),
                        found: *found,
                    },
                    Some(_) => Violation::Lost {
                        sector: Lba(sector),
                        found: *found,
                        expected: self.at(sector, from),
                    },
                };
            }
            if early.is_none_or(|(_, end)| high < end) {
                early = Some((sector, high));
            }
            if late.is_none_or(|(_, start)| low > start) {
                late = Some((sector, low));
            }
        }
        // Sectors that only an unanswered request explains.
        let open = (0..self.sectors()).find(|s| {
            shows_open(*s).is_some() && self.moments(*s, image[to_usize(*s)], from).next().is_none()
        });
        if let Some(shown) = open {
            let change = shows_open(shown).expect("it was found by this");
            let older = |s: &u64| {
                !hidden[to_usize(*s)]
                    && image[to_usize(*s)] != change.version
                    && shows_open(*s).is_none()
            };
            if let Some(hidden) = change.sectors.clone().find(older) {
                return Violation::Torn {
                    shown: Lba(shown),
                    version: change.version,
                    hidden: Lba(hidden),
                    found: image[to_usize(hidden)],
                };
            }
            let behind = (0..self.sectors())
                .find(|s| !hidden[to_usize(*s)] && image[to_usize(*s)] != self.newest(*s))
                .unwrap_or(shown);
            return Violation::NotAllAnswered {
                open: Lba(shown),
                version: change.version,
                sector: Lba(behind),
                found: image[to_usize(behind)],
                expected: self.newest(behind),
            };
        }
        let (early, before) = early.unwrap_or((0, 0));
        let (late, after) = late.unwrap_or((0, 0));
        self.torn_or_hole(image, (early, before), (late, after))
    }

    /// Two sectors without a common moment: of one request, or of two.
    fn torn_or_hole(
        &self,
        image: &[Version],
        (early, before): (u64, u64),
        (late, after): (u64, u64),
    ) -> Violation {
        let (early_version, late_version) = (image[to_usize(early)], image[to_usize(late)]);
        let same_request = self.applied[to_usize(early)]
            .iter()
            .any(|applied| applied.index == after && applied.version == late_version);
        if same_request {
            Violation::Torn {
                shown: Lba(late),
                version: late_version,
                hidden: Lba(early),
                found: early_version,
            }
        } else {
            Violation::Hole {
                early: Lba(early),
                early_version,
                before,
                late: Lba(late),
                late_version,
                after,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! The oracle can fail: wrong images, one of each kind, and then every image of small histories
    //! against an oracle that tries everything.

    use super::*;
    use crate::random::Random;
    use crate::sim::rules::Rules;
    use std::collections::BTreeSet;

    /// A history on a device of six sectors, told step by step.
    struct Story {
        history: History,
        next: u64,
    }

    impl Story {
        fn new() -> Story {
            Story {
                history: History::new(vec![Version::BEFORE; 6], false),
                next: Version::FIRST.0,
            }
        }

        /// A write arrives; its version is also its request's number.
        fn begin(&mut self, sectors: Range<u64>) -> Version {
            self.begin_change(Version(self.next), sectors, Fua::No)
        }

        fn begin_change(&mut self, version: Version, sectors: Range<u64>, fua: Fua) -> Version {
            let change = Change { version, sectors };
            self.history
                .received(RequestId(self.next), Asked::Change(change, fua));
            self.next += 1;
            Version(self.next - 1)
        }

        fn end(&mut self, version: Version) {
            self.history.done(RequestId(version.0), &[]).unwrap();
        }

        fn write(&mut self, sectors: Range<u64>) -> Version {
            let version = self.begin(sectors);
            self.end(version);
            version
        }

        fn zero(&mut self, sectors: Range<u64>) {
            let request = self.begin_change(Version::ZEROES, sectors, Fua::No);
            self.end(request);
        }

        fn flush(&mut self) {
            let flush = self.begin_flush();
            self.history.done(flush, &[]).unwrap();
        }

        fn begin_flush(&mut self) -> RequestId {
            let flush = RequestId(self.next);
            self.next += 1;
            self.history.received(flush, Asked::Flush);
            flush
        }

        fn begin_read(&mut self, sectors: Range<u64>) -> RequestId {
            let read = RequestId(self.next);
            self.next += 1;
            self.history.received(read, Asked::Read(sectors));
            read
        }

        fn check(&self, image: [Version; 6]) -> Result<Explained, Violation> {
            self.history.check(&image, Crash::Power)
        }
    }

    const OLD: Version = Version::BEFORE;

    #[test]
    fn any_prefix_from_the_durable_point_on_is_allowed() {
        let mut story = Story::new();
        let a = story.write(0..2);
        story.flush();
        let b = story.write(1..3);
        let c = story.write(2..4);
        let image_a = [a, a, OLD, OLD, OLD, OLD];
        let image_b = [a, b, b, OLD, OLD, OLD];
        let image_c = [a, b, c, c, OLD, OLD];
        for (p, image) in [(1, image_a), (2, image_b), (3, image_c)] {
            assert_eq!(story.check(image).unwrap().prefix, p);
        }
    }

    #[test]
    fn a_lost_flushed_write_is_caught() {
        let mut story = Story::new();
        story.write(0..2);
        story.flush();
        let found = story.check([OLD; 6]);
        assert!(matches!(found, Err(Violation::Lost { .. })), "{found:?}");
    }

    #[test]
    fn a_write_that_was_answered_after_the_flush_arrived_may_be_lost() {
        let mut story = Story::new();
        let flush = story.begin_flush();
        story.write(0..2);
        story.history.done(flush, &[]).unwrap();
        story.check([OLD; 6]).unwrap();
    }

    #[test]
    fn a_lost_fua_write_and_a_lost_write_before_it_are_caught() {
        let mut story = Story::new();
        let a = story.write(0..1);
        let b = story.begin_change(Version(story.next), 1..2, Fua::Yes);
        story.end(b);
        story.check([a, b, OLD, OLD, OLD, OLD]).unwrap();
        for image in [[a, OLD, OLD, OLD, OLD, OLD], [OLD, b, OLD, OLD, OLD, OLD]] {
            let found = story.check(image);
            assert!(matches!(found, Err(Violation::Lost { .. })), "{found:?}");
        }
    }

    #[test]
    fn a_hole_is_caught() {
        let mut story = Story::new();
        story.write(0..1);
        let b = story.write(1..2);
        let found = story.check([OLD, b, OLD, OLD, OLD, OLD]);
        assert!(matches!(found, Err(Violation::Hole { .. })), "{found:?}");
    }

    #[test]
    fn half_of_an_answered_request_is_caught() {
        let mut story = Story::new();
        let a = story.write(0..4);
        let found = story.check([a, a, OLD, a, OLD, OLD]);
        assert!(matches!(found, Err(Violation::Torn { .. })), "{found:?}");
    }

    #[test]
    fn half_of_an_unanswered_request_is_caught_and_all_or_nothing_is_not() {
        let mut story = Story::new();
        let a = story.begin(0..3);
        story.check([OLD; 6]).unwrap();
        story.check([a, a, a, OLD, OLD, OLD]).unwrap();
        let found = story.check([a, a, OLD, OLD, OLD, OLD]);
        assert!(matches!(found, Err(Violation::Torn { .. })), "{found:?}");
    }

    #[test]
    fn an_unanswered_request_without_all_answered_ones_is_caught() {
        let mut story = Story::new();
        story.write(4..5);
        let b = story.begin(0..1);
        let found = story.check([b, OLD, OLD, OLD, OLD, OLD]);
        let expected = matches!(found, Err(Violation::NotAllAnswered { .. }));
        assert!(expected, "{found:?}");
    }

    #[test]
    fn unanswered_requests_may_show_in_any_order_but_only_in_one() {
        let mut story = Story::new();
        let a = story.begin(0..3);
        let b = story.begin(1..4);
        story.check([a, a, a, b, OLD, OLD]).unwrap();
        story.check([a, b, b, b, OLD, OLD]).unwrap();
        assert!(story.check([a, a, b, b, OLD, OLD]).is_err());
    }

    #[test]
    fn a_superseded_version_that_comes_back_is_caught() {
        let mut story = Story::new();
        let a = story.write(0..1);
        let b = story.write(0..1);
        story.flush();
        story.check([b, OLD, OLD, OLD, OLD, OLD]).unwrap();
        let found = story.check([a, OLD, OLD, OLD, OLD, OLD]);
        assert!(matches!(found, Err(Violation::Lost { .. })), "{found:?}");
    }

    #[test]
    fn a_version_of_an_earlier_life_that_was_dropped_is_caught_when_it_comes_back() {
        let mut story = Story::new();
        let a = story.write(0..1);
        story.check([OLD; 6]).unwrap();
        story.history.begin_life(vec![OLD; 6]);
        let found = story.check([a, OLD, OLD, OLD, OLD, OLD]);
        assert!(matches!(found, Err(Violation::Unknown { .. })), "{found:?}");
    }

    #[test]
    fn what_one_recovery_has_shown_is_not_lost_by_the_next() {
        let mut story = Story::new();
        let a = story.write(0..1);
        let shown = [a, OLD, OLD, OLD, OLD, OLD];
        story.check(shown).unwrap();
        story.history.begin_life(shown.to_vec());
        story.check(shown).unwrap();
        assert!(story.check([OLD; 6]).is_err());
    }

    #[test]
    fn discarded_data_that_comes_back_is_caught() {
        let mut story = Story::new();
        let a = story.write(0..2);
        story.zero(0..1);
        story.flush();
        let zero = Version::ZEROES;
        story.check([zero, a, OLD, OLD, OLD, OLD]).unwrap();
        assert!(story.check([a, a, OLD, OLD, OLD, OLD]).is_err());
        assert!(story.check([zero, zero, OLD, OLD, OLD, OLD]).is_err());
    }

    #[test]
    fn a_process_crash_loses_nothing_that_was_answered() {
        let mut story = Story::new();
        let a = story.write(0..1);
        let image = [a, OLD, OLD, OLD, OLD, OLD];
        story.history.check(&image, Crash::Process).unwrap();
        assert!(story.history.check(&[OLD; 6], Crash::Process).is_err());
        story.check([OLD; 6]).unwrap();
    }

    #[test]
    fn a_read_shows_what_was_there_and_never_what_was_superseded_or_is_not_yet_answered() {
        let mut story = Story::new();
        let a = story.write(0..1);
        let b = story.write(0..1);
        let read = |story: &mut Story, during: &mut dyn FnMut(&mut Story), shown| {
            let read = story.begin_read(0..1);
            during(story);
            story.history.clone().done(read, &[shown])
        };
        assert!(read(&mut story, &mut |_| {}, b).is_ok());
        assert!(read(&mut story, &mut |_| {}, a).is_err(), "superseded");
        let open = story.begin(0..1);
        assert!(read(&mut story, &mut |_| {}, open).is_err(), "too early");
        let mut answer = |story: &mut Story| story.end(open);
        assert!(read(&mut story, &mut answer, open).is_ok());
        // It has been seen now, so the later version is not lost again.
        assert!(read(&mut story, &mut |_| {}, b).is_err(), "went back");
    }

    #[test]
    fn a_failed_change_may_show_or_not_but_whole_and_not_after_a_later_one() {
        let mut story = Story::new();
        let a = story.begin(0..2);
        story.history.failed(RequestId(a.0));
        story.check([OLD; 6]).unwrap();
        story.check([a, a, OLD, OLD, OLD, OLD]).unwrap();
        assert!(story.check([a, OLD, OLD, OLD, OLD, OLD]).is_err());
        let b = story.write(0..1);
        story.check([b, a, OLD, OLD, OLD, OLD]).unwrap();
        story.check([b, OLD, OLD, OLD, OLD, OLD]).unwrap();
        story.flush();
        story.check([b, a, OLD, OLD, OLD, OLD]).unwrap();
        assert!(story.check([a, a, OLD, OLD, OLD, OLD]).is_err());
    }

    /// A small random history, and every image that is allowed after a crash, found by trying.
    struct Small {
        history: History,
        rules: Rules,
        versions: BTreeSet<Version>,
        allowed: BTreeSet<[Version; 3]>,
    }

    fn apply(image: &mut [Version; 3], change: &Change) {
        for sector in change.sectors.clone() {
            image[to_usize(sector)] = change.version;
        }
    }

    fn with_open(image: [Version; 3], open: &[Change], allowed: &mut BTreeSet<[Version; 3]>) {
        allowed.insert(image);
        for next in 0..open.len() {
            let mut rest = open.to_vec();
            let mut image = image;
            apply(&mut image, &rest.remove(next));
            with_open(image, &rest, allowed);
        }
    }

    fn small(random: &mut Random) -> Small {
        let mut history = History::new(vec![Version::BEFORE; 3], false);
        let mut rules = Rules::new(&[Version::BEFORE; 3]);
        let mut versions = BTreeSet::from([Version::ZEROES, Version::BEFORE]);
        let mut order: Vec<Change> = Vec::new();
        let mut open: Vec<(RequestId, Change)> = Vec::new();
        let mut durable = 0;
        for id in 0..random.between(1, 6) {
            let id = RequestId(id);
            if random.chance(150) {
                history.received(id, Asked::Flush);
                rules.received(id, &Asked::Flush);
                history.done(id, &[]).unwrap();
                rules.done(id);
                durable = order.len();
                continue;
            }
            let first = random.below(3);
            let change = Change {
                version: if random.chance(250) {
                    Version::ZEROES
                } else {
                    Version(Version::FIRST.0 + id.0)
                },
                sectors: first..first + random.between(1, 3 - first),
            };
            versions.insert(change.version);
            let asked = Asked::Change(change.clone(), Fua::No);
            rules.received(id, &asked);
            history.received(id, asked);
            open.push((id, change));
            while !open.is_empty() && random.chance(600) {
                let (id, change) = open.remove(random.index(open.len()));
                history.done(id, &[]).unwrap();
                rules.done(id);
                order.push(change);
            }
        }
        let mut allowed = BTreeSet::new();
        let mut image = [Version::BEFORE; 3];
        for p in 0..=order.len() {
            if p >= durable {
                allowed.insert(image);
            }
            if p < order.len() {
                apply(&mut image, &order[p]);
            }
        }
        let open: Vec<Change> = open.into_iter().map(|(_, change)| change).collect();
        with_open(image, &open, &mut allowed);
        Small {
            history,
            rules,
            versions,
            allowed,
        }
    }

    #[test]
    fn of_all_images_of_small_histories_exactly_the_legal_ones_pass() {
        let mut random = Random::new(0x0_5eed);
        let (mut passed, mut refused, mut by_rules) = (0, 0, 0);
        for _ in 0..3000 {
            let small = small(&mut random);
            for a in &small.versions {
                for b in &small.versions {
                    for c in &small.versions {
                        let image = [*a, *b, *c];
                        let found = small.history.check(&image, Crash::Power);
                        let legal = small.allowed.contains(&image);
                        assert_eq!(found.is_ok(), legal, "{image:?}: {found:?}");
                        let ruled = small.rules.check(&image);
                        assert!(ruled.is_ok() || !legal, "{image:?}: {ruled:?}");
                        passed += u32::from(legal);
                        refused += u32::from(!legal);
                        by_rules += u32::from(ruled.is_err());
                    }
                }
            }
        }
        assert!(passed > 10_000 && refused > 100_000, "{passed}, {refused}");
        // The rules know less, but not nothing.
        assert!(by_rules > refused / 2, "{by_rules} of {refused}");
    }
}
