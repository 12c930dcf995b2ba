//! Is the device a byte array when nothing fails?
//!
//! Seeded requests against an engine over plain memory; operations end in an order that the seed chooses.
//! Power cuts and errors are the simulator's business (`sim`).

use super::port::{IoId, Memory, Operation, Port, Segment, Space};
use super::recovery::{Errors, close, open};
use super::request::{Durability, Errno, Op, Outcome, Request, Tag, Unmap};
use super::settings::{PartLimits, Settings, SyncWrite};
use super::{Close, Condition, Engine};
use crate::disk::Disk;
use crate::disk::buffer::{AlignedBuffer, Residency};
use crate::disk::ram::Ram;
use crate::journal::ArrayUuid;
use crate::journal::assemble::{Label, Set, assemble, label};
use crate::journal::geometry::{Placement, Shape};
use crate::units::{KIB, Lba, MIB, Offset, PartIndex, SECTOR, Seq, to_u64, to_usize};
use std::time::Duration;

/// The least generator that does: the seed of a failing case is printed by the assertion.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

enum Pending {
    Read(Offset, Vec<Segment>),
    Write(Offset, Vec<u8>),
    Flush,
    Zero(Offset, u64, Space),
}

struct World {
    disks: Vec<Ram>,
    /// What the disks cannot zero without writing. The engine was told that they can.
    cannot_zero: &'static [Space],
    /// Whether they have said so, and whether they were asked to free space after that.
    has_refused: bool,
    freed_afterwards: bool,
    buffers: Vec<Vec<u8>>,
    pending: Vec<(IoId, PartIndex, Pending)>,
    replies: Vec<(Tag, Outcome)>,
    now: Duration,
}

impl Port for World {
    fn buffer(&self, tag: Tag) -> &[u8] {
        &self.buffers[tag.index()]
    }
    fn buffer_mut(&mut self, tag: Tag, piece: std::ops::Range<usize>) -> &mut [u8] {
        &mut self.buffers[tag.index()][piece]
    }
    fn submit(&mut self, id: IoId, part: PartIndex, operation: Operation<'_>) {
        let pending = match operation {
            Operation::Read { offset, segments } => Pending::Read(offset, segments.to_vec()),
            // The bytes are taken when it ends: they must not change until then.
            Operation::Write {
                offset, segments, ..
            } => Pending::Write(offset, encode(segments)),
            Operation::Flush => Pending::Flush,
            Operation::Zero { offset, len, space } => {
                self.freed_afterwards |= self.has_refused && space == Space::Freed;
                Pending::Zero(offset, len, space)
            }
        };
        self.pending.push((id, part, pending));
    }
    fn reply(&mut self, tag: Tag, outcome: Outcome) {
        self.replies.push((tag, outcome));
    }
}

/// Segments as bytes, so that a write can name its memory until it ends.
fn encode(segments: &[Segment]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for segment in segments {
        let Memory::Arena(at) = segment.memory else {
            panic!("writes come from the arena")
        };
        bytes.extend_from_slice(&to_u64(at).to_le_bytes());
        bytes.extend_from_slice(&to_u64(segment.len).to_le_bytes());
    }
    bytes
}

fn finish_one(engine: &mut Engine, world: &mut World, which: usize) {
    let (id, part, pending) = world.pending.swap_remove(which);
    let disk = &mut world.disks[part.index()];
    let done = match pending {
        Pending::Read(mut offset, segments) => {
            let mut total = 0;
            for segment in segments {
                let mut bytes = AlignedBuffer::zeroed(segment.len);
                disk.read(offset, &mut bytes).unwrap();
                match segment.memory {
                    Memory::Arena(at) => engine
                        .arena_mut()
                        .range_mut(at..at + segment.len)
                        .copy_from_slice(&bytes),
                    Memory::Buffer(tag, at) => {
                        world.buffers[tag.index()][at..at + segment.len].copy_from_slice(&bytes);
                    }
                }
                offset = offset.plus(to_u64(segment.len));
                total += to_u64(segment.len);
            }
            total
        }
        Pending::Write(mut offset, encoded) => {
            let mut total = 0;
            for segment in encoded.chunks_exact(16) {
                let number = |bytes: &[u8]| {
                    usize::try_from(u64::from_le_bytes(bytes.try_into().unwrap())).unwrap()
                };
                let (at, len) = (number(&segment[..8]), number(&segment[8..]));
                disk.write(offset, engine.arena().range(at..at + len))
                    .unwrap();
                offset = offset.plus(to_u64(len));
                total += to_u64(len);
            }
            total
        }
        Pending::Flush => 0,
        Pending::Zero(_, _, space) if world.cannot_zero.contains(&space) => {
            world.has_refused = true;
            engine.completed(id, Err(Errno::NOT_SUPPORTED));
            return;
        }
        Pending::Zero(offset, len, _) => {
            disk.zero(offset, len).unwrap();
            0
        }
    };
    engine.completed(id, Ok(done));
}

fn settings(parts: usize, dice: &mut Dice) -> Settings {
    let limits = PartLimits {
        io_max: 4096 << dice.below(5),
        segments_max: 1 + usize::try_from(dice.below(8)).unwrap(),
        pages_max: 16,
        zeroes: true,
        sync: [SyncWrite::Alone, SyncWrite::Flushes, SyncWrite::Unknown][to_usize(dice.below(3))],
        shares_journal_disk: false,
    };
    Settings {
        queue_depth: 8,
        max_io: 16 * KIB,
        round: 256 * KIB,
        fill: 200 + dice.below(600),
        age: Duration::from_secs(1 + dice.below(30)),
        idle: Duration::from_millis(50 + dice.below(500)),
        window: MIB,
        segment: 16 * KIB,
        extents: 64 + usize::try_from(dice.below(2000)).unwrap(),
        extents_a_turn: 1 + usize::try_from(dice.below(200)).unwrap(),
        bounce: 8 * KIB,
        bounces: 2,
        ios: 512,
        home_writes: 8,
        ..Settings::new(vec![limits; parts])
    }
}

const DEPTH: usize = 8;

/// A request that was not answered yet.
#[derive(Clone, Debug)]
struct Asked {
    request: Request,
    /// What it writes.
    data: Vec<u8>,
    /// What had been answered when it came.
    acked: Seq,
}

/// Returns whether space was freed by a disk after it had refused to keep some.
fn history(seed: u64) -> bool {
    let mut freed_afterwards = false;
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let placements = [
        Placement::Detached,
        Placement::Start,
        Placement::Middle,
        Placement::End,
    ];
    let placement = placements[usize::try_from(dice.below(4)).unwrap()];
    let members = u8::try_from(1 + dice.below(4)).unwrap();
    let shape = Shape {
        members,
        chunk: 4096 << dice.below(4),
        member_size: 4 * MIB,
        placement,
        journal_size: match placement {
            Placement::Detached => 2 * MIB + 640 * KIB,
            Placement::Start | Placement::Middle | Placement::End => 1024 * KIB,
        },
    };
    let parts = usize::from(members) + usize::from(placement == Placement::Detached);
    let disks: Vec<Ram> = (0..parts).map(|_| Ram::new(4 * MIB)).collect();
    let boxed = || {
        disks
            .iter()
            .map(|disk| Box::new(disk.clone()) as Box<dyn Disk>)
            .collect::<Vec<_>>()
    };
    let uuid = ArrayUuid([5; 16]);
    label(
        boxed(),
        &Label {
            uuid,
            name: "t".into(),
            shape,
            block_size: 512,
        },
    )
    .unwrap();

    let mut model: Vec<u8> = Vec::new();
    for life in 0..3u64 {
        let mut set: Set = assemble(boxed()).unwrap();
        let settings = settings(parts, &mut dice);
        let (recovered, report) = open(
            &mut set,
            settings.extents,
            settings.round,
            Errors::Kept,
            &mut |_, _| {},
        )
        .unwrap();
        let device = to_usize(set.geometry.data.size().min(512 * KIB));
        model.resize(device, 0);
        let mut engine = Engine::new(
            settings,
            set.geometry.clone(),
            uuid,
            recovered,
            Residency::OnTouch,
        )
        .unwrap();
        let mut world = World {
            disks: disks.clone(),
            // As block devices and most filesystems; as a filesystem in memory; as none should be.
            cannot_zero: [&[][..], &[Space::Kept], &[Space::Freed, Space::Kept]]
                [to_usize(seed % 3)],
            has_refused: false,
            freed_afterwards: false,
            buffers: vec![vec![0; 16 << 10]; DEPTH],
            pending: Vec::new(),
            replies: Vec::new(),
            now: Duration::ZERO,
        };
        let mut now = Duration::ZERO;
        // Requests in flight never overlap here, so that each has one right answer.
        let mut in_flight: Vec<Option<Asked>> = vec![None; DEPTH];
        let steps = 1500;
        for step in 0..steps + 100_000 {
            let issuing = step < steps;
            if issuing
                && dice.below(3) > 0
                && let Some(tag) = in_flight.iter().position(Option::is_none)
            {
                let max = 32.min(to_u64(device) / SECTOR);
                let sectors = 1 + dice.below(max);
                let lba = dice.below(to_u64(device) / SECTOR - sectors);
                let op = match dice.below(12) {
                    0 => Op::Flush,
                    1 => Op::Discard,
                    2 => Op::WriteZeroes(if dice.below(2) == 0 {
                        Unmap::Allowed
                    } else {
                        Unmap::Forbidden
                    }),
                    3..=6 => Op::Read,
                    _ => Op::Write,
                };
                let durability = if dice.below(10) == 0 {
                    Durability::Now
                } else {
                    Durability::Later
                };
                let (lba, sectors) = if op == Op::Flush {
                    (0, 0)
                } else {
                    (lba, sectors)
                };
                let overlaps =
                    in_flight
                        .iter()
                        .flatten()
                        .any(|Asked { request: other, .. }| {
                            lba < other.lba.0 + u64::from(other.sectors)
                                && other.lba.0 < lba + sectors
                        });
                if !overlaps {
                    let tag = Tag(u16::try_from(tag).unwrap());
                    let request = Request {
                        tag,
                        op,
                        lba: Lba(lba),
                        sectors: u32::try_from(sectors).unwrap(),
                        durability,
                    };
                    let mut data = vec![0; to_usize(sectors * SECTOR)];
                    match op {
                        Op::Write => {
                            for byte in &mut data {
                                *byte = u8::try_from(dice.below(256)).unwrap();
                            }
                            world.buffers[tag.index()][..data.len()].copy_from_slice(&data);
                        }
                        Op::Read => world.buffers[tag.index()].fill(0xEE),
                        Op::Discard | Op::WriteZeroes(_) | Op::Flush => {}
                    }
                    in_flight[tag.index()] = Some(Asked {
                        request,
                        data,
                        acked: engine.acked_seq(),
                    });
                    engine.request(request);
                }
            }
            while !world.pending.is_empty() && dice.below(3) > 0 {
                let which = usize::try_from(dice.below(to_u64(world.pending.len()))).unwrap();
                finish_one(&mut engine, &mut world, which);
            }
            now += Duration::from_micros(dice.below(if issuing { 3_000 } else { 300_000 }));
            engine.advance(now, &mut world);
            engine.check_invariants();
            assert!(!engine.is_held_up(), "seed {seed}: nothing has failed");
            for (tag, outcome) in std::mem::take(&mut world.replies) {
                assert_eq!(outcome, Outcome::Done, "seed {seed}");
                let Asked {
                    request,
                    data,
                    acked,
                } = in_flight[tag.index()].take().expect("one reply a request");
                let range = to_usize(request.lba.0 * SECTOR)
                    ..to_usize((request.lba.0 + u64::from(request.sectors)) * SECTOR);
                match request.op {
                    Op::Read => assert!(
                        world.buffers[tag.index()][..range.len()] == model[range.clone()],
                        "seed {seed} life {life} step {step}: a read at {} is wrong",
                        request.lba
                    ),
                    Op::Write | Op::Discard | Op::WriteZeroes(_) => {
                        model[range].copy_from_slice(&data);
                    }
                    Op::Flush => assert!(
                        engine.durable_seq() >= acked,
                        "seed {seed} life {life} step {step}: what was answered when a flush came is durable"
                    ),
                }
                if request.durability == Durability::Now
                    && !matches!(request.op, Op::Read | Op::Flush)
                {
                    assert!(
                        engine.durable_seq() > acked,
                        "seed {seed} life {life} step {step}: so is a request with FUA"
                    );
                }
            }
            if !issuing && in_flight.iter().all(Option::is_none) && world.pending.is_empty() {
                break;
            }
            assert!(
                step < steps + 99_999,
                "seed {seed}: requests are never answered: {in_flight:?}"
            );
        }
        // A life ends by a stop, by a handover, or by a kill; what was answered is there afterwards.
        let end = dice.below(3);
        if end < 2 {
            let how = if end == 0 {
                Close::Stop
            } else {
                Close::Handover
            };
            engine.begin_close(how);
            for round in 0..10_000 {
                now += Duration::from_millis(10);
                engine.advance(now, &mut world);
                while !world.pending.is_empty() {
                    let last = world.pending.len() - 1;
                    finish_one(&mut engine, &mut world, last);
                }
                engine.check_invariants();
                assert!(!engine.is_held_up(), "seed {seed}: nothing has failed");
                if engine.is_closed() {
                    break;
                }
                assert!(round < 9_999, "seed {seed}: it never closes");
            }
            close(&mut set, &engine, how).unwrap();
            assert_eq!(set.is_clean(), how == Close::Stop);
        }
        if life > 0 {
            assert!(report.kept >= report.durable);
        }
        freed_afterwards |= world.freed_afterwards && world.pending.is_empty();
    }
    freed_afterwards
}

#[test]
fn the_device_is_a_byte_array_when_nothing_fails() {
    let mut freed_afterwards = 0;
    for seed in 0..150 {
        freed_afterwards += usize::from(history(seed) && seed % 3 == 1);
    }
    assert!(
        freed_afterwards > 10,
        "who cannot keep space can still free it: {freed_afterwards}"
    );
}

/// An engine over a new array of one member and a detached journal.
fn brought_up(change: impl Fn(&mut Settings)) -> (Engine, World) {
    let shape = Shape {
        members: 1,
        chunk: 4096,
        member_size: 4 * MIB,
        placement: Placement::Detached,
        journal_size: 2 * MIB + 640 * KIB,
    };
    let disks = vec![Ram::new(4 * MIB), Ram::new(4 * MIB)];
    let boxed = || {
        let disks = disks.iter().cloned();
        disks.map(|disk| Box::new(disk) as Box<dyn Disk>).collect()
    };
    let wanted = Label {
        uuid: ArrayUuid([5; 16]),
        name: "t".into(),
        shape,
        block_size: 512,
    };
    let mut set = label(boxed(), &wanted).unwrap();
    let mut settings = settings(2, &mut Dice(1));
    change(&mut settings);
    let (extents, round) = (settings.extents, settings.round);
    let (recovered, _) = open(&mut set, extents, round, Errors::Kept, &mut |_, _| {}).unwrap();
    let engine = Engine::new(
        settings,
        set.geometry.clone(),
        wanted.uuid,
        recovered,
        Residency::OnTouch,
    )
    .unwrap();
    let world = World {
        disks,
        cannot_zero: &[],
        has_refused: false,
        freed_afterwards: false,
        buffers: vec![vec![0; 16 << 10]; DEPTH],
        pending: Vec::new(),
        replies: Vec::new(),
        now: Duration::ZERO,
    };
    (engine, world)
}

/// What becomes of the operations of the member.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Member {
    Hangs,
    Fails,
    /// It fails up to that turn, and hangs from then on.
    FailsUntil(u64),
}

/// Writes of `sectors` each in whatever tag is free, to ever new places, for `turns` turns of 10 ms with a
/// journal that works. Returns how each turn changed the number of stalls, and how many writes failed.
fn write_on(
    engine: &mut Engine,
    world: &mut World,
    member: Member,
    sectors: u32,
    turns: u64,
) -> (Vec<u64>, u64) {
    let mut free: Vec<Tag> = (0..8).map(Tag).collect();
    let (mut lba, mut failed) = (0, 0);
    let mut stalls = Vec::new();
    for turn in 1..=turns {
        for tag in free.drain(..) {
            engine.request(Request {
                tag,
                op: Op::Write,
                lba: Lba(lba % 2048),
                sectors,
                durability: Durability::Later,
            });
            lba += u64::from(2 * sectors);
        }
        let before = engine.counters().stalls;
        engine.advance(Duration::from_millis(10 * turn), world);
        engine.check_invariants();
        stalls.push(engine.counters().stalls - before);
        for (tag, outcome) in std::mem::take(&mut world.replies) {
            failed += u64::from(outcome != Outcome::Done);
            free.push(tag);
        }
        for which in (0..world.pending.len()).rev() {
            let (id, part, _) = world.pending[which];
            let fails = match member {
                Member::Hangs => false,
                Member::Fails => true,
                Member::FailsUntil(last) => turn <= last,
            };
            if part != MEMBER {
                finish_one(engine, world, which);
            } else if fails {
                world.pending.swap_remove(which);
                engine.completed(id, Err(Errno::IO));
            }
        }
    }
    (stalls, failed)
}

#[test]
fn a_turn_in_which_writers_wait_for_space_is_one_stall() {
    let (mut engine, mut world) = brought_up(|settings| settings.extents = 4096);
    let (stalls, failed) = write_on(&mut engine, &mut world, Member::Hangs, 32, 400);
    assert_eq!(stalls[..2], [0, 0], "the ring is empty");
    assert!(stalls[300..].iter().all(|n| *n == 1), "{stalls:?}");
    assert_eq!(failed, 0);
}

#[test]
fn a_turn_in_which_writers_wait_for_the_map_is_no_stall() {
    let (mut engine, mut world) = brought_up(|settings| settings.extents = 4 * DEPTH);
    let (stalls, failed) = write_on(&mut engine, &mut world, Member::Hangs, 1, 400);
    assert!(engine.requests_pending() > 0, "they wait");
    assert!(stalls.iter().all(|n| *n == 0), "{stalls:?}");
    assert_eq!(failed, 0);
}

#[test]
fn writes_that_are_refused_for_a_failing_member_are_counted() {
    let (mut engine, mut world) = brought_up(|settings| {
        settings.extents = 4096;
        settings.stall_timeout = Some(Duration::from_secs(1));
    });
    let (_, failed) = write_on(&mut engine, &mut world, Member::Fails, 32, 600);
    assert!(failed > 0, "the ring is full and the member fails");
    assert_eq!(engine.counters().refused_writes, failed);
}

/// C-ERR-D2: slowness alone fails no write, whatever was heard before.
#[test]
fn a_member_that_failed_and_then_only_hangs_makes_no_write_fail() {
    let (mut engine, mut world) = brought_up(|settings| {
        settings.extents = 4096;
        settings.stall_timeout = Some(Duration::from_secs(1));
    });
    let (stalls, failed) = write_on(&mut engine, &mut world, Member::FailsUntil(60), 32, 1000);
    assert_eq!(engine.condition(), Condition::Degraded, "it has failed");
    assert_eq!(stalls[900..], [1; 100], "everybody waits");
    assert_eq!(failed, 0);
}

/// How a request is answered if the first operations on a part end in these errors, and all others well.
fn answer_to(
    engine: &mut Engine,
    world: &mut World,
    request: Request,
    part: PartIndex,
    errors: &[Errno],
) -> Outcome {
    engine.request(request);
    let mut errors = errors.iter();
    for _ in 0..10_000 {
        world.now += Duration::from_micros(1);
        engine.advance(world.now, world);
        engine.check_invariants();
        if let Some((_, outcome)) = world.replies.pop() {
            return outcome;
        }
        let Some((id, on, _)) = world.pending.first() else {
            continue;
        };
        match errors.next().filter(|_| *on == part) {
            Some(errno) => {
                let id = *id;
                world.pending.remove(0);
                engine.completed(id, Err(*errno));
            }
            None => finish_one(engine, world, 0),
        }
    }
    panic!("{request:?} was never answered");
}

const MEMBER: PartIndex = PartIndex(0);
const JOURNAL: PartIndex = PartIndex(1);

fn sector(op: Op, lba: u64) -> Request {
    Request {
        tag: Tag(0),
        op,
        lba: Lba(lba),
        sectors: 1,
        durability: Durability::Later,
    }
}

/// C-ERR-J1, C-ERR-6: a part that was busy for a while has not failed yet.
#[test]
fn a_record_is_written_three_times_more_before_the_journal_counts_as_failed() {
    let (busy, failed) = ([Errno::AGAIN; 5], [Errno::IO; 4]);
    let tried = |errors: &[Errno]| {
        let (mut engine, mut world) = brought_up(|_| {});
        let write = sector(Op::Write, 0);
        let outcome = answer_to(&mut engine, &mut world, write, JOURNAL, errors);
        (outcome, engine.condition())
    };
    let well = (Outcome::Done, Condition::Ok);
    assert_eq!(tried(&failed[..3]), well);
    assert_eq!(tried(&[&busy[..], &failed[..3]].concat()), well);
    assert_eq!(tried(&[&failed[..3], &busy[..]].concat()), well);
    let ill = (Outcome::Failed(Errno::IO), Condition::Failed);
    assert_eq!(tried(&failed), ill);
}

/// C-ERR-D4, C-ERR-D5.
#[test]
fn a_read_that_fails_is_one_request_unless_the_member_has_gone() {
    for (errno, condition) in [
        (Errno::IO, Condition::Ok),
        (Errno::NO_DEVICE, Condition::Degraded),
        (Errno::NO_ADDRESS, Condition::Degraded),
    ] {
        let (mut engine, mut world) = brought_up(|_| {});
        let mut read = |errors: &[Errno]| {
            let read = sector(Op::Read, 8);
            let outcome = answer_to(&mut engine, &mut world, read, MEMBER, errors);
            (outcome, engine.condition())
        };
        assert_eq!(read(&[errno]), (Outcome::Failed(errno), condition));
        assert_eq!(read(&[]), (Outcome::Done, condition));
    }
}

/// C-ERR-J3.
#[test]
fn reads_go_on_when_the_journal_has_failed_and_nothing_else_does() {
    let (mut engine, mut world) = brought_up(|_| {});
    let mut ask = |op, lba, errors: &[Errno]| {
        answer_to(&mut engine, &mut world, sector(op, lba), JOURNAL, errors)
    };
    assert_eq!(ask(Op::Write, 0, &[]), Outcome::Done);
    let refused = Outcome::Failed(Errno::IO);
    assert_eq!(ask(Op::Write, 1, &[Errno::IO; 4]), refused);
    for (op, outcome) in [
        (Op::Write, refused),
        (Op::Flush, refused),
        (Op::Discard, refused),
        (Op::Read, Outcome::Done),
    ] {
        for lba in [0, 8] {
            assert_eq!(ask(op, lba, &[]), outcome, "{op:?} at {lba}");
        }
    }
}

/// C-ATM-2, C-RD-2: what is taken in piece by piece is seen whole, or not yet.
#[test]
fn a_discard_that_takes_several_turns_is_seen_whole() {
    let (mut engine, mut world) = brought_up(|settings| settings.extents_a_turn = 3);
    for lba in 0..16 {
        world.buffers[0].fill(7);
        let write = sector(Op::Write, 2 * lba);
        assert_eq!(
            answer_to(&mut engine, &mut world, write, MEMBER, &[]),
            Outcome::Done
        );
    }
    let all = |tag, op| Request {
        tag: Tag(tag),
        sectors: 32,
        ..sector(op, 0)
    };
    engine.request(all(0, Op::Discard));
    let (mut turns, mut asked, mut answered) = (0, false, Vec::new());
    while answered.len() < 2 {
        world.now += Duration::from_micros(1);
        engine.advance(world.now, &mut world);
        engine.check_invariants();
        turns += 1;
        // The read comes while the discard is half in the map.
        if !asked && engine.extents().0 < 14 {
            asked = true;
            engine.request(all(1, Op::Read));
        }
        answered.extend(world.replies.drain(..).map(|(tag, _)| tag));
        if !world.pending.is_empty() {
            finish_one(&mut engine, &mut world, 0);
        }
        assert!(turns < 1000, "it is answered");
    }
    assert!(asked, "it took several turns");
    assert_eq!(answered, [Tag(0), Tag(1)]);
    assert!(world.buffers[1].iter().all(|byte| *byte == 0));
}

#[test]
fn an_engine_that_is_handed_over_ends_although_reads_keep_coming() {
    let (mut engine, mut world) = brought_up(|_| {});
    let read = |tag| Request {
        tag,
        op: Op::Read,
        lba: Lba(u64::from(tag.0) * 64),
        sectors: 8,
        durability: Durability::Later,
    };
    let mut free: Vec<Tag> = (0..8).map(Tag).collect();
    for turn in 1..100 {
        for tag in free.drain(..) {
            engine.request(read(tag));
        }
        if turn == 10 {
            engine.begin_close(Close::Handover);
        }
        engine.advance(Duration::from_millis(turn), &mut world);
        free.extend(world.replies.drain(..).map(|(tag, _)| tag));
        if engine.is_closed() {
            assert!(turn > 10, "reads were in flight when it was asked");
            return;
        }
        // Never all of them, so that something is always in flight as long as more is begun.
        if !world.pending.is_empty() {
            finish_one(&mut engine, &mut world, 0);
        }
    }
    panic!("it never ends");
}

/// C-FUL-1.
#[test]
fn what_is_read_all_the_time_goes_home_all_the_same() {
    let (mut engine, mut world) = brought_up(|_| {});
    let request = |tag, op, lba, sectors| Request {
        tag,
        op,
        lba: Lba(lba),
        sectors,
        durability: Durability::Later,
    };
    let readers = [Tag(1), Tag(2)];
    engine.request(request(Tag(0), Op::Write, 8, 8));
    for turn in 1..1000 {
        engine.advance(Duration::from_millis(turn), &mut world);
        for (tag, _) in std::mem::take(&mut world.replies) {
            // The block is written; from now on the two read it, and what lies around it.
            let again = if tag == Tag(0) { &readers[..] } else { &[tag] };
            for reader in again {
                engine.request(request(*reader, Op::Read, 0, 32));
            }
            if tag == Tag(0) {
                engine.begin_sync();
            }
        }
        if engine.acked_seq() > Seq(0) && engine.is_home(engine.acked_seq()) {
            assert!(turn > 2, "it was read meanwhile");
            return;
        }
        // All ends but what one of them reads from the member: there is always a read in flight.
        let kept = readers[to_usize(turn % 2)];
        let is_kept = |pending: &Pending| {
            matches!(pending, Pending::Read(_, segments)
                if matches!(segments[0].memory, Memory::Buffer(tag, _) if tag == kept))
        };
        for which in (0..world.pending.len()).rev() {
            if !is_kept(&world.pending[which].2) {
                finish_one(&mut engine, &mut world, which);
            }
        }
    }
    panic!("replay waits for the readers for ever");
}

#[test]
fn an_engine_at_rest_does_nothing_however_long_nobody_asks() {
    let (mut engine, mut world) = brought_up(|_| {});
    let mut now = Duration::ZERO;
    for tag in 0..4 {
        engine.request(Request {
            tag: Tag(tag),
            op: Op::Write,
            lba: Lba(u64::from(tag) * 64),
            sectors: 8,
            durability: Durability::Later,
        });
        assert!(!engine.is_at_rest(), "somebody waits");
    }
    for _ in 0..10_000 {
        now += Duration::from_millis(10);
        engine.advance(now, &mut world);
        while !world.pending.is_empty() {
            finish_one(&mut engine, &mut world, 0);
        }
        if engine.is_at_rest() {
            break;
        }
    }
    assert!(engine.is_at_rest(), "everything is home and told");
    assert!(engine.is_home(engine.acked_seq()));
    for hours in 1..10 {
        engine.advance(now + Duration::from_secs(3600 * hours), &mut world);
        assert!(
            world.pending.is_empty(),
            "hour {hours}: it has begun something"
        );
        assert!(engine.is_at_rest());
    }
}
