//! The contract's own checker (crash-spec section 8, rules 1 to 5).
//!
//! It knows only when each request arrived and when it was answered, not the order in which the journal
//! took them: it would judge any device. It is weaker than [`super::oracle`], and it does not share that
//! one's belief that replies leave in the order of the log; an image must satisfy both.
//!
//! A sector of zeroes does not say which request wrote it. It is taken for the newest that it can be,
//! and proves nothing about any other sector. The same goes for a request that is issued again after the
//! program died, where the device already showed it.

use crate::sim::oracle::{Asked, Change, Fua, RequestId, Violation};
use crate::sim::stamp::Version;
use crate::units::to_usize;
use std::collections::{BTreeMap, BTreeSet};

/// One write of one sector. Times are numbers of events.
#[derive(Clone, Copy, Debug)]
struct Write {
    version: Version,
    submitted: u64,
    /// `None`: not answered, or answered with an error.
    completed: Option<u64>,
    durable: Fua,
}

impl Write {
    fn superseded_by(&self, other: &Write) -> bool {
        self.completed.is_some_and(|end| end < other.submitted)
    }
}

/// What the checker remembers of one life.
#[derive(Clone, Debug)]
pub struct Rules {
    now: u64,
    /// The writes of each sector in the order of their arrival; the first is what it held before.
    sectors: Vec<Vec<Write>>,
    open: BTreeMap<RequestId, (u64, Asked)>,
    /// Every change by its version, for atomicity.
    changes: BTreeMap<Version, (u64, Change)>,
    /// Versions of which a sector does not say which of two requests has written it.
    ambiguous: BTreeSet<Version>,
    /// Rule 2: the newest arrival among answered flushes and the newest answered FUA write.
    threshold: u64,
}

impl Rules {
    /// A device that holds `base`.
    pub fn new(base: &[Version]) -> Rules {
        let before = |version: &Version| {
            vec![Write {
                version: *version,
                submitted: 0,
                completed: Some(0),
                durable: Fua::No,
            }]
        };
        Rules {
            now: 0,
            sectors: base.iter().map(before).collect(),
            open: BTreeMap::new(),
            changes: BTreeMap::new(),
            ambiguous: BTreeSet::from([Version::ZEROES]),
            threshold: 0,
        }
    }

    /// A request arrives.
    pub fn received(&mut self, id: RequestId, asked: &Asked) {
        self.now += 1;
        if let Asked::Change(change, durable) = asked {
            for sector in change.sectors.clone() {
                let writes = &mut self.sectors[to_usize(sector)];
                if writes[0].version == change.version {
                    self.ambiguous.insert(change.version);
                }
                writes.push(Write {
                    version: change.version,
                    submitted: self.now,
                    completed: None,
                    durable: *durable,
                });
            }
            self.changes
                .insert(change.version, (self.now, change.clone()));
        }
        self.open.insert(id, (self.now, asked.clone()));
    }

    /// A request is answered with success.
    pub fn done(&mut self, id: RequestId) {
        self.now += 1;
        let (submitted, asked) = self.open.remove(&id).expect("an answer has a request");
        match asked {
            Asked::Change(change, fua) => {
                for sector in change.sectors {
                    let writes = &mut self.sectors[to_usize(sector)];
                    let write = writes
                        .iter_mut()
                        .rfind(|write| write.submitted == submitted)
                        .expect("it was entered when it arrived");
                    write.completed = Some(self.now);
                }
                if fua == Fua::Yes {
                    self.threshold = self.threshold.max(submitted);
                }
            }
            Asked::Flush => self.threshold = self.threshold.max(submitted),
            Asked::Read(_) => {}
        }
    }

    /// A request is answered with an error: it may show or not, for ever after.
    pub fn failed(&mut self, id: RequestId) {
        self.now += 1;
        self.open.remove(&id);
    }

    /// Whether `image`, read after a power cut, satisfies rules 1 to 5.
    pub fn check(&self, image: &[Version]) -> Result<(), Violation> {
        let shown = self.identify(image)?;
        let threshold = shown
            .iter()
            .filter(|write| !self.ambiguous.contains(&write.version))
            .map(|write| write.submitted)
            .chain([self.threshold])
            .max()
            .unwrap_or(0);
        self.check_prefix(&shown, threshold)?;
        self.check_atomicity(&shown)
    }

    /// Rule 1: each sector shows a write that was submitted to it.
    fn identify(&self, image: &[Version]) -> Result<Vec<Write>, Violation> {
        assert_eq!(image.len(), self.sectors.len());
        let mut shown = Vec::with_capacity(image.len());
        for (sector, (found, writes)) in image.iter().zip(&self.sectors).enumerate() {
            let write = writes
                .iter()
                .filter(|write| write.version == *found)
                .max_by_key(|write| write.completed.unwrap_or(u64::MAX))
                .ok_or_else(|| Violation::Rule {
                    rule: 1,
                    what: format!("sector {sector} holds {found}, which was never written there"),
                })?;
            shown.push(*write);
        }
        Ok(shown)
    }

    /// Rules 3 and 5: nothing older than what must be there.
    fn check_prefix(&self, shown: &[Write], threshold: u64) -> Result<(), Violation> {
        for (sector, (shown, writes)) in shown.iter().zip(&self.sectors).enumerate() {
            for write in writes {
                let Some(completed) = write.completed else {
                    continue;
                };
                let durable = write.durable == Fua::Yes;
                if (completed < threshold || durable) && shown.superseded_by(write) {
                    return Err(Violation::Rule {
                        rule: if durable { 5 } else { 3 },
                        what: format!(
                            "sector {sector} holds {}, but {} superseded it and must be there",
                            shown.version, write.version
                        ),
                    });
                }
            }
        }
        Ok(())
    }

    /// Rule 4: no request shows in one sector and what it supersedes in another.
    fn check_atomicity(&self, shown: &[Write]) -> Result<(), Violation> {
        let mut checked = Version::ZEROES;
        for write in shown {
            // Sectors of one request mostly lie side by side.
            if write.version == checked {
                continue;
            }
            checked = write.version;
            let Some((submitted, change)) = self.changes.get(&write.version) else {
                continue;
            };
            if self.ambiguous.contains(&change.version) {
                continue;
            }
            for sector in change.sectors.clone() {
                let other = &shown[to_usize(sector)];
                if other.completed.is_some_and(|end| end < *submitted) {
                    return Err(Violation::Rule {
                        rule: 4,
                        what: format!(
                            "{} shows, but its sector {sector} still holds {}",
                            write.version, other.version
                        ),
                    });
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    //! One wrong image for each rule. That no right image is refused is tested beside the oracle, with
    //! the same small histories.

    use super::*;
    use std::ops::Range;

    const OLD: Version = Version::BEFORE;

    fn story() -> Rules {
        Rules::new(&[OLD; 4])
    }

    fn begin(rules: &mut Rules, n: u64, sectors: Range<u64>, fua: Fua) -> Version {
        let version = Version(Version::FIRST.0 + n);
        rules.received(
            RequestId(n),
            &Asked::Change(Change { version, sectors }, fua),
        );
        version
    }

    fn write(rules: &mut Rules, n: u64, sectors: Range<u64>, fua: Fua) -> Version {
        let version = begin(rules, n, sectors, fua);
        rules.done(RequestId(n));
        version
    }

    fn rule(rules: &Rules, image: [Version; 4]) -> u8 {
        match rules.check(&image) {
            Ok(()) => 0,
            Err(Violation::Rule { rule, .. }) => rule,
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn a_version_that_was_never_written_there_breaks_rule_1() {
        let mut rules = story();
        let a = write(&mut rules, 0, 0..1, Fua::No);
        assert_eq!(rule(&rules, [OLD, a, OLD, OLD]), 1);
        assert_eq!(rule(&rules, [Version(99), OLD, OLD, OLD]), 1);
    }

    #[test]
    fn a_lost_write_before_a_visible_one_or_before_a_flush_breaks_rule_3() {
        let mut rules = story();
        let a = write(&mut rules, 0, 0..1, Fua::No);
        let b = write(&mut rules, 1, 1..2, Fua::No);
        assert_eq!(rule(&rules, [OLD, b, OLD, OLD]), 3);
        assert_eq!(rule(&rules, [a, OLD, OLD, OLD]), 0);
        rules.received(RequestId(2), &Asked::Flush);
        rules.done(RequestId(2));
        assert_eq!(rule(&rules, [a, OLD, OLD, OLD]), 3);
    }

    #[test]
    fn half_a_request_breaks_rule_4() {
        let mut rules = story();
        let a = begin(&mut rules, 0, 0..2, Fua::No);
        assert_eq!(rule(&rules, [a, OLD, OLD, OLD]), 4);
        assert_eq!(rule(&rules, [a, a, OLD, OLD]), 0);
    }

    #[test]
    fn a_request_that_is_issued_again_may_already_be_half_overwritten() {
        let version = Version(Version::FIRST.0);
        let newer = Version(Version::FIRST.0 + 9);
        let mut rules = Rules::new(&[version, newer, OLD, OLD]);
        begin(&mut rules, 0, 0..2, Fua::No);
        assert_eq!(rule(&rules, [version, newer, OLD, OLD]), 0);
        assert_eq!(rule(&rules, [version, version, OLD, OLD]), 0);
    }

    #[test]
    fn a_lost_fua_write_breaks_rule_5() {
        let mut rules = story();
        let a = write(&mut rules, 0, 0..1, Fua::Yes);
        assert_eq!(rule(&rules, [OLD; 4]), 5);
        assert_eq!(rule(&rules, [a, OLD, OLD, OLD]), 0);
    }

    #[test]
    fn a_failed_write_may_show_or_not() {
        let mut rules = story();
        let a = begin(&mut rules, 0, 0..1, Fua::No);
        rules.failed(RequestId(0));
        assert_eq!(rule(&rules, [OLD; 4]), 0);
        assert_eq!(rule(&rules, [a, OLD, OLD, OLD]), 0);
    }
}
