//! The parts of an array together: label, assemble, and every change of their superblocks.
//!
//! n superblocks cannot change at once, so each change is a sequence in which every step leaves a legal
//! array behind if it is the last:
//!
//! ```text
//!   label   every part `forming` | anchors | every part `ready`
//!   start   journal: epoch E+1, members_at as known | members: epoch E+1, dirty | journal: members_at E+1
//!   stop    anchor: closed | members: clean | journal: clean
//! ```
//!
//! A journal is stale iff some member's epoch is greater than its own; a member is stale iff its epoch is
//! less than the journal's `members_at`; an array is clean iff every part says so for the same epoch.
//! Attached, member 0's superblock is the journal's.

use super::anchor::{Anchor, Closed, RingPlace};
use super::geometry::{Geometry, Placement, Shape, ShapeError, superblock_places};
use super::scan::write_anchor;
use super::superblock::{Cleanliness, Health, Marks, Phase, Role, Superblock, SuperblockError};
use super::{ArrayUuid, FRAME_LEN};
use crate::disk::buffer::AlignedBuffer;
use crate::disk::{Disk, DiskError};
use crate::units::{Epoch, FRAME, Offset, PartIndex, Seq};

/// The parts of one array, in the order of [`PartIndex`], with what their superblocks say.
pub struct Set {
    /// The parts.
    pub disks: Vec<Box<dyn Disk>>,
    /// Their superblocks.
    pub superblocks: Vec<Superblock>,
    /// Where everything lies on them.
    pub geometry: Geometry,
}

impl std::fmt::Debug for Set {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Set")
            .field("superblocks", &self.superblocks)
            .finish_non_exhaustive()
    }
}

/// What `label` writes.
#[derive(Clone, Debug)]
pub struct Label {
    /// The new array.
    pub uuid: ArrayUuid,
    /// Its name.
    pub name: String,
    /// Its layout.
    pub shape: Shape,
    /// Its logical block size.
    pub block_size: u32,
}

/// Why a part's superblock cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PartError {
    /// Neither copy is one.
    #[error("{part}: {problem}")]
    Superblock {
        /// The part.
        part: String,
        /// What is wrong with the copy that comes nearest to being one.
        problem: SuperblockError,
    },
    /// The copies contradict each other.
    #[error("{part}: both superblock copies are of generation {generation} and differ")]
    CopiesDiffer {
        /// The part.
        part: String,
        /// Their generation.
        generation: u64,
    },
    /// The disk does not answer.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Two parts of two arrays.
#[derive(Debug, thiserror::Error)]
#[error("{a} belongs to array {a_uuid} ({a_name}), {b} to array {b_uuid} ({b_name})")]
pub struct Mixed {
    /// One part.
    pub a: String,
    /// Its array.
    pub a_uuid: ArrayUuid,
    /// And its name.
    pub a_name: String,
    /// Another part.
    pub b: String,
    /// Its array.
    pub b_uuid: ArrayUuid,
    /// And its name.
    pub b_name: String,
}

/// Why parts are not an array that can be started.
#[derive(Debug, thiserror::Error)]
pub enum AssembleError {
    /// One of them.
    #[error(transparent)]
    Part(#[from] PartError),
    /// They are of two arrays.
    #[error(transparent)]
    Mixed(Box<Mixed>),
    /// Two are the same part.
    #[error("{a} and {b} both say that they are {role} of this array: one is a copy of the other")]
    Doubled {
        /// One part.
        a: String,
        /// The other.
        b: String,
        /// What both are.
        role: Role,
    },
    /// They describe different arrays.
    #[error("{a} and {b} disagree about the array's {what}")]
    Disagree {
        /// One part.
        a: String,
        /// The other.
        b: String,
        /// What they disagree about.
        what: &'static str,
    },
    /// One is not there.
    #[error("{role} of array {name} is missing")]
    Missing {
        /// Which.
        role: Role,
        /// Of which array.
        name: String,
        /// How many members that has.
        members: u8,
    },
    /// `label` was interrupted.
    #[error("{part}: labelling this array was interrupted; run label again")]
    Forming {
        /// The part.
        part: String,
    },
    /// A part lost some of its end.
    #[error("{part} has {found} bytes, it had {expected} when it was labelled")]
    Shrunk {
        /// The part.
        part: String,
        /// What it has.
        found: u64,
        /// What it had.
        expected: u64,
    },
    /// The journal is an old copy, or the array ran without it.
    #[error(
        "{journal} knows of life {found} only, {member} of life {expected}: it is an old copy of the journal"
    )]
    JournalStale {
        /// The journal's part.
        journal: String,
        /// Its epoch.
        found: Epoch,
        /// A member that knows better.
        member: String,
        /// That member's epoch.
        expected: Epoch,
    },
    /// A member is an old copy, or the array ran without it.
    #[error(
        "{member} knows of life {found} only, all members had begun life {expected}: it is an old copy"
    )]
    MemberStale {
        /// The member.
        member: String,
        /// Its epoch.
        found: Epoch,
        /// What the journal says that it had begun.
        expected: Epoch,
    },
    /// A member does not know that the array was stopped.
    #[error(
        "{member} does not know that life {epoch} of the array ended in a stop, all other parts do: it is an old copy"
    )]
    MemberNotStopped {
        /// The member.
        member: String,
        /// The life.
        epoch: Epoch,
    },
    /// Features that this version cannot write.
    #[error(
        "{part}: features {features:#x} are unknown to this version, which can therefore only read it"
    )]
    ReadOnly {
        /// The part.
        part: String,
        /// Which.
        features: u64,
    },
    /// The layout cannot be.
    #[error(transparent)]
    Shape(#[from] ShapeError),
}

/// The superblock of a part: the newest of its two copies.
///
/// # Errors
/// If there is none that can be used.
pub fn read_superblock(disk: &mut dyn Disk) -> Result<Superblock, PartError> {
    let part = disk.name();
    let [first, second] = read_copies(disk)?;
    match (first, second) {
        (Ok(a), Ok(b)) if a.generation == b.generation && a != b => Err(PartError::CopiesDiffer {
            part,
            generation: a.generation,
        }),
        (Ok(a), Ok(b)) => Ok(if b.generation > a.generation { b } else { a }),
        (Ok(a), Err(_)) => Ok(a),
        (Err(_), Ok(b)) => Ok(b),
        // The copy that says more about what is wrong.
        (Err(SuperblockError::Absent), Err(problem)) | (Err(problem), Err(_)) => {
            Err(PartError::Superblock { part, problem })
        }
    }
}

/// Both copies, as far as they are superblocks.
///
/// # Errors
/// If the disk gives neither.
pub fn read_copies(
    disk: &mut dyn Disk,
) -> Result<[Result<Superblock, SuperblockError>; 2], DiskError> {
    if disk.size() < 4 * FRAME {
        return Ok([Err(SuperblockError::Absent), Err(SuperblockError::Absent)]);
    }
    let [a, _] = superblock_places(disk.size());
    let mut buffer = AlignedBuffer::zeroed(FRAME_LEN);
    let first = match disk.read(a, &mut buffer) {
        Ok(()) => Superblock::decode(&buffer),
        Err(error) => {
            // An unreadable copy is a lost copy, as long as the other can be read.
            let b = superblock_places(disk.size())[1];
            disk.read(b, &mut buffer).map_err(|_| error)?;
            return Ok([Err(SuperblockError::Absent), Superblock::decode(&buffer)]);
        }
    };
    // A part that has grown keeps its second copy where its end was; the first copy says where.
    let size = first
        .as_ref()
        .map_or(disk.size(), |sb| sb.part_size.min(disk.size()));
    let b = superblock_places(size)[1];
    let second = match disk.read(b, &mut buffer) {
        Ok(()) => Superblock::decode(&buffer),
        Err(_) => Err(SuperblockError::Absent),
    };
    Ok([first, second])
}

/// Writes a new array on `disks`: the members in order, then a detached journal.
///
/// Nothing is asked here: whether the disks may be overwritten is for the caller to know.
///
/// # Errors
/// If the layout cannot be, or a disk does not take it; then the array is left `forming`.
pub fn label(disks: Vec<Box<dyn Disk>>, label: &Label) -> Result<Set, LabelError> {
    let geometry = Geometry::new(label.shape)?;
    assert_eq!(disks.len(), geometry.parts());
    let superblocks = disks.iter().zip(0..).map(|(disk, index)| Superblock {
        uuid: label.uuid,
        name: label.name.clone(),
        role: if index < label.shape.members {
            Role::Member(index)
        } else {
            Role::Journal
        },
        shape: label.shape,
        block_size: label.block_size,
        part_size: disk.size(),
        phase: Phase::Forming,
        epoch: Epoch(0),
        members_at: Epoch(0),
        cleanliness: Cleanliness::Clean,
        health: Health::Ok,
        health_seq: Seq::NONE,
        marks: Marks::default(),
        generation: 0,
        compat: 0,
        ro_compat: 0,
    });
    let superblocks = superblocks.collect();
    let mut set = Set {
        disks,
        superblocks,
        geometry,
    };
    // 1. What was there before goes first. A crash while new superblocks are written must not leave old
    //    ones that make a whole array with some of the new.
    set.erase_superblocks()?;
    // 2. Every part says that it is being formed.
    let all: Vec<PartIndex> = set.parts().collect();
    set.update(&all, |_| ())?;
    // 3. The journal is empty and closed.
    let anchor = Anchor {
        uuid: label.uuid,
        generation: 1,
        tail: RingPlace::default(),
        head: RingPlace::default(),
        head_number: 0,
        epoch: Epoch(0),
        durable: Seq::NONE,
        replayed_through: Seq::NONE,
        closed: Closed::Yes,
    };
    write_anchor(&mut set.disks, &set.geometry, &anchor, 0)?;
    write_anchor(
        &mut set.disks,
        &set.geometry,
        &Anchor {
            generation: 2,
            ..anchor
        },
        1,
    )?;
    // 4. Only now may it be started.
    set.update(&all, |sb| sb.phase = Phase::Ready)?;
    Ok(set)
}

/// Why an array could not be labelled.
#[derive(Debug, thiserror::Error)]
pub enum LabelError {
    /// The layout.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A disk.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Puts the parts of an array in order and checks that they belong together.
///
/// # Errors
/// If they do not, or one is missing.
pub fn assemble(disks: Vec<Box<dyn Disk>>) -> Result<Set, AssembleError> {
    let mut parts: Vec<(Superblock, Box<dyn Disk>)> = Vec::with_capacity(disks.len());
    for mut disk in disks {
        let sb = read_superblock(disk.as_mut())?;
        if let Some((first, other)) = parts.first() {
            check_same_array((first, other.as_ref()), (&sb, disk.as_ref()))?;
        }
        check_part(&sb, disk.as_ref())?;
        parts.push((sb, disk));
    }
    parts.sort_by_key(|(sb, _)| sb.role);
    for pair in parts.windows(2) {
        if pair[0].0.role == pair[1].0.role {
            let (a, b) = (pair[0].1.name(), pair[1].1.name());
            return Err(AssembleError::Doubled {
                a,
                b,
                role: pair[0].0.role,
            });
        }
    }
    let Some((first, _)) = parts.first() else {
        return Err(AssembleError::Missing {
            role: Role::Member(0),
            name: String::new(),
            members: 0,
        });
    };
    let (shape, name) = (first.shape, first.name.clone());
    let geometry = Geometry::new(shape)?;
    let mut roles: Vec<Role> = (0..shape.members).map(Role::Member).collect();
    if shape.placement == Placement::Detached {
        roles.push(Role::Journal);
    }
    for (index, role) in roles.iter().enumerate() {
        if parts.get(index).map(|(sb, _)| sb.role) != Some(*role) {
            return Err(AssembleError::Missing {
                role: *role,
                name,
                members: shape.members,
            });
        }
    }
    let (superblocks, disks) = parts.into_iter().unzip();
    let set = Set {
        disks,
        superblocks,
        geometry,
    };
    set.check_epochs()?;
    Ok(set)
}

fn check_same_array(
    a: (&Superblock, &dyn Disk),
    b: (&Superblock, &dyn Disk),
) -> Result<(), AssembleError> {
    let (names, a, b) = ((a.1.name(), b.1.name()), a.0, b.0);
    if a.uuid != b.uuid {
        return Err(AssembleError::Mixed(Box::new(Mixed {
            a: names.0,
            a_uuid: a.uuid,
            a_name: a.name.clone(),
            b: names.1,
            b_uuid: b.uuid,
            b_name: b.name.clone(),
        })));
    }
    let what = if a.shape != b.shape {
        "layout"
    } else if a.block_size != b.block_size {
        "block size"
    } else if a.name != b.name {
        "name"
    } else {
        return Ok(());
    };
    Err(AssembleError::Disagree {
        a: names.0,
        b: names.1,
        what,
    })
}

fn check_part(sb: &Superblock, disk: &dyn Disk) -> Result<(), AssembleError> {
    let part = disk.name();
    if sb.phase == Phase::Forming {
        return Err(AssembleError::Forming { part });
    }
    if disk.size() < sb.part_size {
        return Err(AssembleError::Shrunk {
            part,
            found: disk.size(),
            expected: sb.part_size,
        });
    }
    if sb.ro_compat != 0 {
        return Err(AssembleError::ReadOnly {
            part,
            features: sb.ro_compat,
        });
    }
    Ok(())
}

impl Set {
    /// All parts.
    pub fn parts(&self) -> impl Iterator<Item = PartIndex> + use<> {
        let count = u8::try_from(self.disks.len()).expect("at most 33 parts");
        (0..count).map(PartIndex)
    }

    /// The superblock that speaks for the journal.
    pub fn journal(&self) -> &Superblock {
        &self.superblocks[self.geometry.journal_part().index()]
    }

    /// The parts whose superblocks do not speak for the journal.
    fn others(&self) -> Vec<PartIndex> {
        let journal = self.geometry.journal_part();
        self.parts().filter(|part| *part != journal).collect()
    }

    fn check_epochs(&self) -> Result<(), AssembleError> {
        let journal = self.geometry.journal_part();
        let known = self.journal();
        for part in self.others() {
            let sb = &self.superblocks[part.index()];
            let member = self.disks[part.index()].name();
            if sb.epoch > known.epoch {
                return Err(AssembleError::JournalStale {
                    journal: self.disks[journal.index()].name(),
                    found: known.epoch,
                    member,
                    expected: sb.epoch,
                });
            }
            if sb.epoch < known.members_at {
                return Err(AssembleError::MemberStale {
                    member,
                    found: sb.epoch,
                    expected: known.members_at,
                });
            }
            // The journal's part is the last that is marked clean and the first that is marked dirty.
            if known.cleanliness == Cleanliness::Clean
                && sb.cleanliness == Cleanliness::Dirty
                && sb.epoch == known.epoch
            {
                return Err(AssembleError::MemberNotStopped {
                    member,
                    epoch: sb.epoch,
                });
            }
        }
        Ok(())
    }

    /// Whether all parts but the journal's know of a stop that the journal's does not: it came to its last
    /// step only, or that part is an old copy. What the anchor says tells which.
    pub fn only_journal_is_dirty(&self) -> bool {
        let known = self.journal();
        let others = self.others();
        let is_clean = |part: &PartIndex| {
            let sb = &self.superblocks[part.index()];
            sb.cleanliness == Cleanliness::Clean && sb.epoch == known.epoch
        };
        known.cleanliness == Cleanliness::Dirty && !others.is_empty() && others.iter().all(is_clean)
    }

    /// Whether everything that was acknowledged is at home: every part says so for the same epoch.
    pub fn is_clean(&self) -> bool {
        let epoch = self.journal().epoch;
        self.superblocks
            .iter()
            .all(|sb| sb.cleanliness == Cleanliness::Clean && sb.epoch == epoch)
    }

    /// The worst health that any part has recorded.
    pub fn health(&self) -> Health {
        self.superblocks
            .iter()
            .map(|sb| sb.health)
            .max()
            .unwrap_or(Health::Ok)
    }

    /// Begins the next life on every part; returns its epoch.
    ///
    /// # Errors
    /// If a disk does not take it, or no epoch is left.
    pub fn begin_life(&mut self) -> Result<Epoch, BeginError> {
        let epoch = self.journal().epoch.next().ok_or(BeginError::OutOfEpochs)?;
        let journal = [self.geometry.journal_part()];
        let others = self.others();
        let reached = others
            .iter()
            .map(|part| self.superblocks[part.index()].epoch)
            .min();
        // 1. The journal first: from here on a copy of it that does not know this life is stale.
        self.update(&journal, |sb| {
            sb.epoch = epoch;
            sb.members_at = reached.unwrap_or(epoch);
            sb.cleanliness = Cleanliness::Dirty;
        })?;
        // 2. Then the members.
        self.update(&others, |sb| {
            sb.epoch = epoch;
            sb.cleanliness = Cleanliness::Dirty;
        })?;
        // 3. Now a member that does not know this life is stale.
        self.update(&journal, |sb| sb.members_at = epoch)?;
        Ok(epoch)
    }

    /// Records, after a stop, that everything is at home. `anchor` is the last of this life.
    ///
    /// # Errors
    /// If a disk does not take it; then the array stays dirty.
    pub fn end_life(&mut self, anchor: &Anchor, copy: usize) -> Result<(), DiskError> {
        let others = self.others();
        // A crash after any of these steps leaves an array that is dirty and has nothing to replay. In this
        // order an old copy of any part is known by what the other parts say.
        write_anchor(&mut self.disks, &self.geometry, anchor, copy)?;
        self.update(&others, |sb| sb.cleanliness = Cleanliness::Clean)?;
        let journal = [self.geometry.journal_part()];
        self.update(&journal, |sb| sb.cleanliness = Cleanliness::Clean)
    }

    /// Notes that the array's health has become worse, and returns what must be done on each part, in this
    /// order, for the next start to know it. On a part that is ill it may take long.
    ///
    /// While an engine believes its flushes, whoever else flushes one of its parts may be told of a failure
    /// that was meant for the engine, whose own flush then succeeds. So with [`Flushes::TheEngines`] one copy
    /// is written and nothing flushed: it becomes durable with the engine's next flush, and the other copy
    /// stays as it is.
    pub fn note_health(&mut self, health: Health, seq: Seq, flushes: Flushes) -> Vec<Vec<Step>> {
        let note = |sb: &mut Superblock| {
            sb.health = health;
            sb.health_seq = seq;
            sb.generation += 1;
            let places = superblock_places(sb.part_size);
            let write = |copy: usize| {
                let mut buffer = AlignedBuffer::zeroed(FRAME_LEN);
                buffer.copy_from_slice(&sb.encode());
                Step::Write(places[copy], buffer)
            };
            match flushes {
                Flushes::TheEngines => vec![write(0)],
                // The first copy may have been written as above, and be volatile still.
                Flushes::Anybodys => {
                    vec![Step::Flush, write(1), Step::Flush, write(0), Step::Flush]
                }
            }
        };
        self.superblocks.iter_mut().map(note).collect()
    }

    /// Changes the superblocks of `parts`, together: one copy of each, a flush, the other ones, a flush.
    ///
    /// The copy that is behind goes first. After an update that was cut short one copy alone holds the
    /// newest superblock, and if that one were overwritten and torn, the part would be what it was two
    /// updates ago: an old copy, to be refused.
    ///
    /// # Errors
    /// If a disk does not take it. Some parts may have changed then, and one copy of each is whole.
    pub fn update(
        &mut self,
        parts: &[PartIndex],
        change: impl Fn(&mut Superblock),
    ) -> Result<(), DiskError> {
        let mut firsts = Vec::with_capacity(parts.len());
        for part in parts {
            let copies = self.copies(*part);
            if copies != Copies::Equal {
                // Whoever wrote the newer one may have died before it was durable. If the power goes while
                // the other one is written, it is the only one.
                self.disks[part.index()].flush()?;
            }
            firsts.push(usize::from(copies == Copies::FirstNewer));
            let sb = &mut self.superblocks[part.index()];
            change(sb);
            sb.generation += 1;
        }
        for turn in 0..2 {
            for (part, first) in parts.iter().zip(&firsts) {
                let sb = &self.superblocks[part.index()];
                let mut buffer = AlignedBuffer::zeroed(FRAME_LEN);
                buffer.copy_from_slice(&sb.encode());
                let place = superblock_places(sb.part_size)[(first + turn) % 2];
                self.disks[part.index()].write(place, &buffer)?;
            }
            // Only one copy may be on its way at a time: a cut tears what is being written.
            for part in parts {
                self.disks[part.index()].flush()?;
            }
        }
        Ok(())
    }

    /// How the copies of a part's superblock stand to each other. One that cannot be read is older.
    fn copies(&mut self, part: PartIndex) -> Copies {
        let newest = &self.superblocks[part.index()];
        let is_newest = |copy: &Result<Superblock, SuperblockError>| {
            copy.as_ref()
                .is_ok_and(|sb| sb.generation == newest.generation)
        };
        let copies = read_copies(self.disks[part.index()].as_mut());
        match copies.map(|copies| copies.each_ref().map(is_newest)) {
            Ok([true, true]) => Copies::Equal,
            Ok([true, false]) => Copies::FirstNewer,
            Ok([false, _]) | Err(_) => Copies::SecondNewer,
        }
    }

    /// Takes the labels off: the array is no more.
    ///
    /// # Errors
    /// If a disk does not take it.
    pub fn erase_superblocks(&mut self) -> Result<(), DiskError> {
        let zeroes = AlignedBuffer::zeroed(FRAME_LEN);
        for (disk, sb) in self.disks.iter_mut().zip(&self.superblocks) {
            for place in superblock_places(sb.part_size) {
                disk.write(place, &zeroes)?;
            }
            disk.flush()?;
        }
        Ok(())
    }
}

/// How the two copies of a superblock stand to each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Copies {
    Equal,
    FirstNewer,
    SecondNewer,
}

/// Who may flush the parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flushes {
    /// The engine that serves them, and nobody else.
    TheEngines,
    /// Anybody: no engine believes a flush any more.
    Anybodys,
}

/// A step of a change that somebody else carries out: [`Set::note_health`].
#[derive(Clone, Debug)]
pub enum Step {
    /// Write this there.
    Write(Offset, AlignedBuffer),
    /// Make durable what was written.
    Flush,
}

/// Why a new life could not be begun.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// A disk.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// All numbers are used up.
    #[error(
        "the array has been started 2^20 times and has no number left for another life: label it anew"
    )]
    OutOfEpochs,
}
