//! What goes wrong with one operation of a simulated disk, by schedule or by rate.
//!
//! A rule says: of the operations of one kind that touch a range, let the first so many pass, then hit
//! the next so many. A rate hits any operation of a kind with a probability. Which fault an operation
//! gets is decided when it begins, so that it depends on what was asked and not on the order of ends.

use crate::disk::DiskOp;
use crate::engine::request::Errno;
use crate::random::Random;
use crate::units::SECTOR;
use std::ops::Range;

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It fails. A write may have reached any of its sectors; a flush forgets what it covered.
    Error(Errno),
    /// Only a first part is done and reported: this many thousandths, at least a byte less than all.
    Short(u64),
    /// A write lands elsewhere on the same disk, whole.
    Misdirect,
    /// One bit of what is written, or of what is read, is wrong.
    Flip,
    /// A read returns what is durable, not what is newest.
    Stale,
    /// The disk is gone, from this operation on.
    Vanish,
}

/// A fault at a place in time.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Of which operations.
    pub op: DiskOp,
    /// Only of those that touch these bytes.
    pub bytes: Range<u64>,
    /// How many of them pass first.
    pub after: u64,
    /// How many are hit; `u64::MAX`: all from then on.
    pub times: u64,
    /// By what.
    pub fault: Fault,
}

impl Rule {
    /// Hits the operation number `k` (from 0) of kind `op`, wherever it is.
    pub fn nth(op: DiskOp, k: u64, fault: Fault) -> Rule {
        Rule {
            op,
            bytes: 0..u64::MAX,
            after: k,
            times: 1,
            fault,
        }
    }

    fn touches(&self, op: DiskOp, offset: u64, len: u64) -> bool {
        // A flush has no place: it touches every range.
        let everywhere = op == DiskOp::Flush;
        self.op == op
            && (everywhere || (offset < self.bytes.end && self.bytes.start < offset + len))
    }

    /// Whether this operation is hit; counts it.
    fn hits(&mut self, op: DiskOp, offset: u64, len: u64) -> bool {
        if !self.touches(op, offset, len) {
            return false;
        }
        if self.after > 0 {
            self.after -= 1;
            return false;
        }
        if self.times == 0 {
            return false;
        }
        if self.times != u64::MAX {
            self.times -= 1;
        }
        true
    }
}

/// How often an operation of a kind is hit, in a million.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Of which operations.
    pub op: DiskOp,
    /// How many of a million.
    pub per_million: u64,
    /// By what.
    pub fault: Fault,
}

/// Everything that will go wrong with one disk.
#[derive(Clone, Debug)]
pub struct Faults {
    rules: Vec<Rule>,
    rates: Vec<Rate>,
    random: Random,
    hit: u64,
}

impl Faults {
    /// Nothing goes wrong.
    pub fn none() -> Faults {
        Faults::new(Vec::new(), Vec::new(), Random::new(0))
    }

    /// These rules and rates.
    pub fn new(rules: Vec<Rule>, rates: Vec<Rate>, random: Random) -> Faults {
        Faults {
            rules,
            rates,
            random,
            hit: 0,
        }
    }

    /// How many operations were hit.
    pub fn hit(&self) -> u64 {
        self.hit
    }

    /// What goes wrong with an operation that begins now.
    pub fn verdict(&mut self, op: DiskOp, offset: u64, len: u64) -> Option<Fault> {
        // Every rule counts every operation, also where an earlier one has hit it.
        let mut found = None;
        for rule in &mut self.rules {
            if rule.hits(op, offset, len) {
                found = found.or(Some(rule.fault));
            }
        }
        for rate in &self.rates {
            if rate.op == op && self.random.below(1_000_000) < rate.per_million {
                found = found.or(Some(rate.fault));
            }
        }
        self.hit += u64::from(found.is_some());
        found
    }

    /// The generator for what a fault leaves open: which sectors, which bit.
    pub fn random(&mut self) -> &mut Random {
        &mut self.random
    }
}

/// How many bytes of `len` a short transfer does: mostly whole sectors, sometimes not.
pub fn short_len(len: u64, permille: u64, random: &mut Random) -> u64 {
    let done = len * permille.min(999) / 1000;
    if random.chance(900) {
        done / SECTOR * SECTOR
    } else {
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_hits_the_operations_that_it_names_and_no_others() {
        let rule = Rule {
            op: DiskOp::Write,
            bytes: 4096..8192,
            after: 1,
            times: 2,
            fault: Fault::Flip,
        };
        let mut faults = Faults::new(vec![rule], Vec::new(), Random::new(1));
        let mut hits = |op, offset, len| faults.verdict(op, offset, len).is_some();
        assert!(!hits(DiskOp::Write, 0, 4096), "before the range");
        assert!(!hits(DiskOp::Write, 8192, 512), "behind the range");
        assert!(!hits(DiskOp::Read, 4096, 512), "another kind");
        assert!(!hits(DiskOp::Write, 4096, 512), "the first one passes");
        assert!(hits(DiskOp::Write, 0, 4608));
        assert!(hits(DiskOp::Write, 7680, 4096));
        assert!(!hits(DiskOp::Write, 4096, 512), "twice and no more");
        assert_eq!(faults.hit(), 2);
    }

    #[test]
    fn a_flush_is_hit_wherever_the_range_is() {
        let rule = Rule {
            bytes: 4096..8192,
            ..Rule::nth(DiskOp::Flush, 0, Fault::Error(Errno::IO))
        };
        let mut faults = Faults::new(vec![rule], Vec::new(), Random::new(1));
        assert!(faults.verdict(DiskOp::Flush, 0, 0).is_some());
    }

    #[test]
    fn a_short_transfer_is_never_whole() {
        let mut random = Random::new(3);
        for len in [512, 1024, 65536] {
            for permille in [0, 1, 500, 999, 1000] {
                assert!(short_len(len, permille, &mut random) < len);
            }
        }
    }
}
