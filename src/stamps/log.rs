//! What was submitted and what was acknowledged, outside the device.
//!
//! A file of records of [`RECORD_LEN`] bytes, only ever appended to. Their order is the order of things: a
//! record that says "acknowledged" is made when the completion was seen, one that says "submitted" before
//! the request is given to the kernel. So of an acknowledgement that stands before a submission the
//! request really ended before the other one began. The reverse may be told late, which makes the check
//! milder, never wrong.
//!
//! [`LogWriter::commit`] returns when the records are in the file to stay, whatever becomes of this
//! machine as long as the file is elsewhere. A request goes to the kernel only after that, so that nothing
//! can be on the device that the log does not know.
//!
//! A log ends where its records are no longer valid: a crash may have cut the last ones. Whatever followed
//! was not committed, and nothing of it was submitted.

use super::{Counter, Seed, Writer};
use crate::units::{Lba, to_u64};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a record.
pub const RECORD_LEN: usize = 40;

const KIND_BEGIN: u8 = 1;
const KIND_SUBMITTED: u8 = 2;
const KIND_ACKNOWLEDGED: u8 = 3;
const KIND_FLUSH_SUBMITTED: u8 = 4;
const KIND_FLUSH_ACKNOWLEDGED: u8 = 5;
const KIND_END: u8 = 6;

const FLAG_FUA: u8 = 1;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Record {
    kind: u8,
    flags: u8,
    writer: U16,
    sectors: U32,
    counter: U64,
    lba: U64,
    /// The machine's clock, in nanoseconds since 1970: for people, the check does not look at it.
    time: U64,
    /// The record's number, so that none is missing and none is old.
    number: U32,
    checksum: U32,
}

const _: () = assert!(size_of::<Record>() == RECORD_LEN);

/// The stretch of the device that a run writes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// Its first sector.
    pub first: Lba,
    /// How many.
    pub sectors: u32,
}

/// When a write counts as done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// When the device has it.
    Later,
    /// When it is durable (FUA).
    Now,
}

/// One thing that happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A run of `writers` began.
    Begin {
        /// Which run.
        seed: Seed,
        /// Where.
        stretch: Stretch,
        /// By how many.
        writers: u16,
    },
    /// A write is about to be given to the kernel.
    Submitted {
        /// Whose.
        writer: Writer,
        /// Which.
        counter: Counter,
        /// From where on.
        lba: Lba,
        /// How long.
        sectors: u32,
        /// How.
        durability: Durability,
    },
    /// A write was acknowledged.
    Acknowledged {
        /// Whose.
        writer: Writer,
        /// Which.
        counter: Counter,
    },
    /// A flush, counted from 1, is about to be given to the kernel.
    FlushSubmitted(Counter),
    /// It was acknowledged.
    FlushAcknowledged(Counter),
    /// The run ended as it should: nothing was in flight.
    End,
}

fn encode(event: Event, time: Duration, number: u32) -> Record {
    let none = Record {
        kind: 0,
        flags: 0,
        writer: U16::ZERO,
        sectors: U32::ZERO,
        counter: U64::ZERO,
        lba: U64::ZERO,
        time: U64::new(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
        number: U32::new(number),
        checksum: U32::ZERO,
    };
    let mut record = match event {
        Event::Begin {
            seed,
            stretch,
            writers,
        } => Record {
            kind: KIND_BEGIN,
            writer: U16::new(writers),
            sectors: U32::new(stretch.sectors),
            counter: U64::new(seed.0),
            lba: U64::new(stretch.first.0),
            ..none
        },
        Event::Submitted {
            writer,
            counter,
            lba,
            sectors,
            durability,
        } => Record {
            kind: KIND_SUBMITTED,
            flags: if durability == Durability::Now {
                FLAG_FUA
            } else {
                0
            },
            writer: U16::new(writer.0),
            sectors: U32::new(sectors),
            counter: U64::new(counter.0),
            lba: U64::new(lba.0),
            ..none
        },
        Event::Acknowledged { writer, counter } => Record {
            kind: KIND_ACKNOWLEDGED,
            writer: U16::new(writer.0),
            counter: U64::new(counter.0),
            ..none
        },
        Event::FlushSubmitted(counter) => Record {
            kind: KIND_FLUSH_SUBMITTED,
            counter: U64::new(counter.0),
            ..none
        },
        Event::FlushAcknowledged(counter) => Record {
            kind: KIND_FLUSH_ACKNOWLEDGED,
            counter: U64::new(counter.0),
            ..none
        },
        Event::End => Record {
            kind: KIND_END,
            ..none
        },
    };
    record.checksum = U32::new(crc32c::crc32c(record.as_bytes()));
    record
}

/// The event of a record, if it is the one that comes next.
fn decode(bytes: &[u8], number: u32) -> Option<(Event, Duration)> {
    let mut record = Record::read_from_bytes(bytes).ok()?;
    let checksum = record.checksum.get();
    record.checksum = U32::ZERO;
    if crc32c::crc32c(record.as_bytes()) != checksum || record.number.get() != number {
        return None;
    }
    let (writer, counter) = (Writer(record.writer.get()), Counter(record.counter.get()));
    let event = match record.kind {
        KIND_BEGIN => Event::Begin {
            seed: Seed(record.counter.get()),
            stretch: Stretch {
                first: Lba(record.lba.get()),
                sectors: record.sectors.get(),
            },
            writers: record.writer.get(),
        },
        KIND_SUBMITTED => Event::Submitted {
            writer,
            counter,
            lba: Lba(record.lba.get()),
            sectors: record.sectors.get(),
            durability: if record.flags & FLAG_FUA == 0 {
                Durability::Later
            } else {
                Durability::Now
            },
        },
        KIND_ACKNOWLEDGED => Event::Acknowledged { writer, counter },
        KIND_FLUSH_SUBMITTED => Event::FlushSubmitted(counter),
        KIND_FLUSH_ACKNOWLEDGED => Event::FlushAcknowledged(counter),
        KIND_END => Event::End,
        _ => return None,
    };
    Some((event, Duration::from_nanos(record.time.get())))
}

/// A log that is being written.
#[derive(Debug)]
pub struct LogWriter {
    file: File,
    number: u32,
    pending: Vec<u8>,
}

impl LogWriter {
    /// A new log.
    ///
    /// # Errors
    /// If there is such a file already: two runs in one log would be a mess.
    pub fn create(path: &Path) -> io::Result<LogWriter> {
        let file = OpenOptions::new()
            .create_new(true)
            .append(true)
            .open(path)?;
        Ok(LogWriter {
            file,
            number: 0,
            pending: Vec::new(),
        })
    }

    /// Adds an event to what the next [`LogWriter::commit`] writes.
    pub fn note(&mut self, event: Event, time: Duration) {
        let record = encode(event, time, self.number);
        self.pending.extend_from_slice(record.as_bytes());
        self.number = self
            .number
            .checked_add(1)
            .expect("nobody waits for 2^32 events");
    }

    /// Writes what was noted; when it returns, it is in the file for good.
    ///
    /// # Errors
    /// If the file does not take it.
    pub fn commit(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.file.write_all(&self.pending)?;
        // The file may lie on a filesystem whose pages die with this machine.
        self.file.sync_data()?;
        self.pending.clear();
        Ok(())
    }
}

/// The events of a log, in order, and how many bytes behind the last valid one were left out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Read {
    /// What happened, and when.
    pub events: Vec<(Event, Duration)>,
    /// Bytes that are not part of it.
    pub rest: u64,
}

/// Reads the bytes of a log.
pub fn read(bytes: &[u8]) -> Read {
    let events: Vec<_> = bytes
        .chunks_exact(RECORD_LEN)
        .zip(0..)
        .map_while(|(record, number)| decode(record, number))
        .collect();
    let rest = to_u64(bytes.len()) - to_u64(events.len() * RECORD_LEN);
    Read { events, rest }
}

#[cfg(test)]
mod tests {
    //! Goal: a log reads back as it was written, and ends where it was cut or damaged. Method: write one,
    //! then cut it at every byte and flip every bit of a record.

    use super::*;
    use std::io::Read as _;

    fn events() -> Vec<Event> {
        let (writer, counter) = (Writer(2), Counter(7));
        vec![
            Event::Begin {
                seed: Seed(5),
                stretch: Stretch {
                    first: Lba(2048),
                    sectors: 4096,
                },
                writers: 4,
            },
            Event::Submitted {
                writer,
                counter,
                lba: Lba(3000),
                sectors: 9,
                durability: Durability::Now,
            },
            Event::FlushSubmitted(Counter(1)),
            Event::Acknowledged { writer, counter },
            Event::FlushAcknowledged(Counter(1)),
            Event::End,
        ]
    }

    fn written() -> Vec<u8> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let mut log = LogWriter::create(&path).expect("a new log");
        for event in events() {
            log.note(event, Duration::from_nanos(3));
            log.commit().expect("there is space");
        }
        let error = LogWriter::create(&path).expect_err("it is there already");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        let mut bytes = Vec::new();
        let mut file = File::open(&path).expect("it is there");
        file.read_to_end(&mut bytes).expect("it can be read");
        bytes
    }

    #[test]
    fn a_log_reads_back_as_it_was_written() {
        let found = read(&written());
        assert_eq!(found.rest, 0);
        let time = Duration::from_nanos(3);
        let expected: Vec<_> = events().into_iter().map(|event| (event, time)).collect();
        assert_eq!(found.events, expected);
    }

    #[test]
    fn a_log_that_was_cut_ends_before_the_cut() {
        let bytes = written();
        for end in 0..bytes.len() {
            let found = read(&bytes[..end]);
            assert_eq!(found.events.len(), end / RECORD_LEN);
            assert_eq!(found.rest, to_u64(end % RECORD_LEN));
        }
    }

    #[test]
    fn a_log_ends_before_a_damaged_record() {
        let bytes = written();
        for bit in 0..RECORD_LEN * 8 {
            let mut bytes = bytes.clone();
            bytes[2 * RECORD_LEN + bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read(&bytes).events.len(), 2, "bit {bit}");
        }
    }

    #[test]
    fn a_record_that_is_missing_ends_the_log() {
        let mut bytes = written();
        bytes.drain(RECORD_LEN..2 * RECORD_LEN);
        assert_eq!(read(&bytes).events.len(), 1);
    }
}
