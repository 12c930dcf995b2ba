//! The last things that happened, for whoever reads a failure.

use crate::engine::request::{Errno, Op};
use crate::sim::media::Zone;
use crate::sim::stamp::Version;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

/// How many events are kept.
const KEPT: usize = 4000;

/// One thing that happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A request was given to the engine.
    Request {
        /// Its tag.
        tag: u16,
        /// What is asked.
        op: Op,
        /// The first sector and how many.
        sectors: (u64, u64),
        /// Whether it is FUA.
        fua: bool,
        /// What the sectors become.
        version: Version,
    },
    /// A request was answered.
    Reply {
        /// Its tag.
        tag: u16,
        /// How.
        error: Option<Errno>,
    },
    /// An operation on a part was begun.
    Begin {
        /// Its number.
        id: u16,
        /// On which part.
        part: usize,
        /// What it does.
        what: &'static str,
        /// What the place is for.
        zone: Zone,
        /// Where, and how many bytes.
        bytes: (u64, u64),
    },
    /// An operation on a part ended.
    End {
        /// Its number.
        id: u16,
        /// How.
        error: Option<Errno>,
    },
    /// Anything else.
    Note(String),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = |error: &Option<Errno>| {
            error.map_or_else(|| "ok".to_owned(), |errno| format!("error {}", errno.0))
        };
        match self {
            Event::Request {
                tag,
                op,
                sectors,
                fua,
                version,
            } => {
                let fua = if *fua { " FUA" } else { "" };
                let (first, count) = sectors;
                write!(f, "--> tag {tag} {op:?}{fua} {first}+{count} {version}")
            }
            Event::Reply { tag, error: how } => write!(f, "<-- tag {tag} {}", error(how)),
            Event::Begin {
                id,
                part,
                what,
                zone,
                bytes: (offset, len),
            } => write!(
                f,
                "    io {id} begins: {what} part {part} {zone:?} {offset}+{len}"
            ),
            Event::End { id, error: how } => write!(f, "    io {id} ends: {}", error(how)),
            Event::Note(note) => write!(f, "*** {note}"),
        }
    }
}

/// What happened last; shared by all who tell it.
#[derive(Clone, Debug, Default)]
pub struct Story(Rc<RefCell<Told>>);

#[derive(Debug, Default)]
struct Told {
    told: u64,
    events: VecDeque<(Duration, Event)>,
}

impl Story {
    /// Adds an event.
    pub fn tell(&self, now: Duration, event: Event) {
        let mut told = self.0.borrow_mut();
        if told.events.len() == KEPT {
            told.events.pop_front();
        }
        told.told += 1;
        told.events.push_back((now, event));
    }

    /// Adds a remark.
    pub fn note(&self, now: Duration, note: impl Into<String>) {
        self.tell(now, Event::Note(note.into()));
    }

    /// How much has been told so far.
    pub fn mark(&self) -> u64 {
        self.0.borrow().told
    }

    /// Takes back what has been told since.
    pub fn forget_since(&self, mark: u64) {
        let mut told = self.0.borrow_mut();
        while told.told > mark {
            told.told -= 1;
            told.events.pop_back();
        }
    }

    /// The last `lines` of it.
    pub fn last(&self, lines: usize) -> String {
        let events = &self.0.borrow().events;
        let skipped = events.len().saturating_sub(lines);
        let mut text = String::new();
        for (now, event) in events.iter().skip(skipped) {
            text += &format!("{:>12} us  {event}\n", now.as_micros());
        }
        text
    }
}
