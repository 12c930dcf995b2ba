//! A power cut: what each sector that was not durable is found as.
//!
//! The media allow any choice for each sector. Choosing each one by a coin would hardly ever leave a
//! whole record, or lose a whole record and keep the next, so a cut has a style, drawn anew each time:
//!
//! ```text
//!   nothing      only what was durable                    the flush that was forgotten shows here
//!   everything   as if every write had reached the media
//!   each write   a coin for each write: kept, lost, shorn (its first sectors only), scattered
//!   each sector  a coin for each sector
//!   in order     writes as they completed up to a moment, the next one shorn, then none
//!   all but one  everything but one write, or one sector of it: the hole
//!   only one     nothing but one write: the later version, while the earlier one is lost
//!   torn         one sector of every other write cannot be read: the media were busy with it
//!   by zone      another of these for each zone: home kept and ring lost is what breaks the WAL rule
//! ```
//!
//! A sector that was being written is sometimes unreadable. That may be one of a write in flight, and,
//! more rarely, one of a completed write that the disk was just moving from its cache to the media.

use crate::random::{Random, mix};
use crate::sim::media::{AtRisk, Candidate, Clock, SimDisk, Survivor, Ticket, Zone};
use crate::units::{to_u64, to_usize};

/// What becomes of one write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Kept,
    Lost,
    /// This many of its first sectors are kept; the next one may be unreadable.
    Shorn(u64),
    /// Each sector with this many chances in a thousand.
    Scattered(u64),
    /// All but this one of its sectors.
    Pierced(u64),
    /// This one of its sectors is unreadable; the others have this many chances in a thousand.
    Torn(u64, u64),
}

/// A write and the disk that it is on.
#[derive(Clone, Copy, Debug)]
struct Loose {
    disk: usize,
    write: AtRisk,
}

/// How a cut chooses; see the drawing above.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// Only what was durable is left.
    Nothing,
    /// Everything is left that was begun.
    Everything,
    /// Writes fall one by one.
    EachWrite,
    /// Sectors fall one by one.
    EachSector,
    /// Everything up to a moment.
    InOrder,
    /// All but one write or one sector.
    AllButOne,
    /// One write and nothing else.
    OnlyOne,
    /// Unreadable sectors everywhere.
    Torn,
    /// One style for the ring and its anchors, another for everything else.
    ByZone,
}

const STYLES: [(Style, u64); 9] = [
    (Style::Nothing, 2),
    (Style::Everything, 1),
    (Style::EachWrite, 6),
    (Style::EachSector, 2),
    (Style::InOrder, 4),
    (Style::AllButOne, 4),
    (Style::OnlyOne, 2),
    (Style::Torn, 1),
    (Style::ByZone, 4),
];

impl Style {
    /// Any style, the productive ones more often.
    pub fn draw(random: &mut Random) -> Style {
        STYLES[random.weighted(&STYLES.map(|(_, weight)| weight))].0
    }
}

/// The disks of an array once power is back, after a cut in a style of chance's choice.
pub fn cut(disks: &[SimDisk], random: &mut Random) -> Vec<SimDisk> {
    let style = Style::draw(random);
    cut_in_style(disks, style, random)
}

/// The disks of an array once power is back, after a cut in this style.
pub fn cut_in_style(disks: &[SimDisk], style: Style, random: &mut Random) -> Vec<SimDisk> {
    let loose = loose_writes(disks);
    let fates = draw_fates(&loose, style, random);
    let clock = Clock::default();
    disks
        .iter()
        .enumerate()
        .map(|(index, disk)| {
            // The fates of this disk's writes, in the order of tickets: loose_writes kept it.
            let mine: Vec<(Ticket, u64, Fate)> = loose
                .iter()
                .zip(&fates)
                .filter(|(loose, _)| loose.disk == index)
                .map(|(loose, fate)| (loose.write.ticket, loose.write.first, *fate))
                .collect();
            let candidates = disk.candidates();
            disk.after_cut(&clock, &candidates, |group| survivor(group, &mine, random))
        })
        .collect()
}

fn loose_writes(disks: &[SimDisk]) -> Vec<Loose> {
    disks
        .iter()
        .enumerate()
        .flat_map(|(disk, d)| {
            d.at_risk()
                .into_iter()
                .map(move |write| Loose { disk, write })
        })
        .collect()
}

fn draw_fates(loose: &[Loose], style: Style, random: &mut Random) -> Vec<Fate> {
    if loose.is_empty() {
        return Vec::new();
    }
    match style {
        Style::Nothing => vec![Fate::Lost; loose.len()],
        Style::Everything => vec![Fate::Kept; loose.len()],
        Style::EachSector => {
            let chance = *random.pick(&[100, 500, 900, 990]);
            vec![Fate::Scattered(chance); loose.len()]
        }
        Style::EachWrite => {
            let kept = *random.pick(&[1, 4, 16]);
            let lost = *random.pick(&[1, 4, 16]);
            loose
                .iter()
                .map(|loose| one_fate(&loose.write, [kept, lost, 4, 1], random))
                .collect()
        }
        Style::InOrder => {
            let mut order: Vec<usize> = (0..loose.len()).collect();
            // What is in flight comes last, in the order of chance.
            order.sort_by_cached_key(|i| {
                let completed = loose[*i].write.completed;
                (completed.unwrap_or(u64::MAX), random.bits())
            });
            let reached = random.index(loose.len() + 1);
            let mut fates = vec![Fate::Lost; loose.len()];
            for (rank, index) in order.into_iter().enumerate() {
                if rank < reached {
                    fates[index] = Fate::Kept;
                } else if rank == reached {
                    fates[index] = Fate::Shorn(random.below(loose[index].write.sectors + 1));
                }
            }
            fates
        }
        Style::AllButOne => {
            let mut fates = vec![Fate::Kept; loose.len()];
            let one = random.index(loose.len());
            let sectors = loose[one].write.sectors;
            fates[one] = match random.below(3) {
                0 => Fate::Lost,
                1 => Fate::Pierced(random.below(sectors)),
                _ => Fate::Shorn(random.below(sectors)),
            };
            fates
        }
        Style::OnlyOne => {
            let mut fates = vec![Fate::Lost; loose.len()];
            fates[random.index(loose.len())] = Fate::Kept;
            fates
        }
        Style::Torn => {
            let kept = *random.pick(&[0, 500, 1000]);
            let torn = |loose: &Loose| {
                if random.chance(500) {
                    Fate::Torn(random.below(loose.write.sectors), kept)
                } else {
                    Fate::Scattered(kept)
                }
            };
            loose.iter().map(torn).collect()
        }
        Style::ByZone => {
            let simple = [
                Style::Nothing,
                Style::Everything,
                Style::Everything,
                Style::EachWrite,
                Style::InOrder,
                Style::AllButOne,
            ];
            let journal = *random.pick(&simple);
            let others = *random.pick(&simple);
            let journal = draw_fates(loose, journal, random);
            let others = draw_fates(loose, others, random);
            let pick = |((loose, journal), others): ((&Loose, &Fate), &Fate)| match loose.write.zone
            {
                Zone::Ring | Zone::Anchor => *journal,
                Zone::Home | Zone::Superblock | Zone::Unused => *others,
            };
            loose.iter().zip(&journal).zip(&others).map(pick).collect()
        }
    }
}

fn one_fate(write: &AtRisk, weights: [u64; 4], random: &mut Random) -> Fate {
    match random.weighted(&weights) {
        0 => Fate::Kept,
        1 => Fate::Lost,
        2 => Fate::Shorn(random.below(write.sectors + 1)),
        _ => Fate::Scattered(*random.pick(&[200, 500, 900])),
    }
}

/// The newest candidate that its write's fate lets through, else what is durable.
fn survivor(group: &[Candidate], fates: &[(Ticket, u64, Fate)], random: &mut Random) -> Survivor {
    for (index, candidate) in group.iter().enumerate().rev() {
        let found = fates
            .binary_search_by_key(&candidate.ticket, |(ticket, ..)| *ticket)
            .expect("every candidate belongs to a write at risk");
        let (_, first, fate) = fates[found];
        // A misdirected write holds sectors before its first one; for those the fate is as good as any.
        let at = candidate.sector.wrapping_sub(first);
        // In flight, and completed.
        let (kept, torn) = match fate {
            Fate::Kept => (true, [0, 0]),
            Fate::Lost => (false, [0, 0]),
            Fate::Shorn(n) => (at < n, if at == n { [125, 30] } else { [0, 0] }),
            Fate::Scattered(chance) => (random.chance(chance), [60, 2]),
            Fate::Pierced(n) => (at != n, if at == n { [250, 60] } else { [0, 0] }),
            Fate::Torn(n, chance) => (
                random.chance(chance),
                if at == n { [1000, 1000] } else { [0, 0] },
            ),
        };
        let torn = torn[usize::from(!candidate.in_flight)];
        if torn > 0 && random.chance(torn) {
            return Survivor::Unreadable;
        }
        if kept {
            return Survivor::Candidate(index);
        }
    }
    Survivor::Durable
}

/// Every choice that a cut has, for small histories: sectors that can be found as different contents.
#[derive(Debug)]
pub struct Choices {
    candidates: Vec<Vec<Candidate>>,
    open: Vec<Open>,
    /// The prints of the disks as they would be if nothing survived.
    durable: Vec<u64>,
}

/// A sector that can be found as more than one content.
#[derive(Debug)]
struct Open {
    disk: usize,
    sector: u64,
    options: Vec<Survivor>,
    /// What each option's content counts as in the print of the disk.
    prints: Vec<u64>,
}

impl Choices {
    /// The choices of these disks. Unreadable sectors are left out: there would be no end to them.
    pub fn of(disks: &[SimDisk]) -> Choices {
        let candidates: Vec<Vec<Candidate>> = disks.iter().map(SimDisk::candidates).collect();
        let mut open = Vec::new();
        for (disk, candidates) in candidates.iter().enumerate() {
            for group in candidates.chunk_by(|a, b| a.sector == b.sector) {
                let sector = group[0].sector;
                let mut prints = vec![disks[disk].durable_print(sector)];
                let mut options = vec![Survivor::Durable];
                for (index, candidate) in group.iter().enumerate() {
                    if !prints.contains(&candidate.print()) {
                        prints.push(candidate.print());
                        options.push(Survivor::Candidate(index));
                    }
                }
                if options.len() > 1 {
                    open.push(Open {
                        disk,
                        sector,
                        options,
                        prints,
                    });
                }
            }
        }
        Choices {
            candidates,
            open,
            durable: disks.iter().map(SimDisk::print).collect(),
        }
    }

    /// How many sectors are open.
    pub fn sectors(&self) -> usize {
        self.open.len()
    }

    /// How many different images there are, unless they are more than `most`.
    pub fn images(&self, most: u64) -> Option<u64> {
        self.open.iter().try_fold(1, |images: u64, open| {
            let images = images.checked_mul(to_u64(open.options.len()))?;
            (images <= most).then_some(images)
        })
    }

    /// Which option of each open sector makes image number `n` of [`Choices::images`].
    pub fn numbered(&self, n: u64) -> Picks {
        let mut left = n;
        let digit = |open: &Open| {
            let options = to_u64(open.options.len());
            let digit = left % options;
            left /= options;
            to_usize(digit)
        };
        Picks(self.open.iter().map(digit).collect())
    }

    /// An option of each open sector by chance.
    pub fn sample(&self, random: &mut Random) -> Picks {
        let option = |open: &Open| random.index(open.options.len());
        Picks(self.open.iter().map(option).collect())
    }

    /// The print of the image that these picks make, without making it.
    pub fn print(&self, picks: &Picks) -> u64 {
        let mut disks = self.durable.clone();
        for (open, pick) in self.open.iter().zip(&picks.0) {
            let disk = &mut disks[open.disk];
            *disk = disk
                .wrapping_sub(open.prints[0])
                .wrapping_add(open.prints[*pick]);
        }
        combine(disks.into_iter())
    }

    /// The image that these picks make.
    pub fn image(&self, disks: &[SimDisk], picks: &Picks) -> Vec<SimDisk> {
        let clock = Clock::default();
        disks
            .iter()
            .zip(&self.candidates)
            .enumerate()
            .map(|(index, (disk, candidates))| {
                disk.after_cut(&clock, candidates, |group| {
                    let key = (index, group[0].sector);
                    self.open
                        .binary_search_by_key(&key, |open| (open.disk, open.sector))
                        .map_or(Survivor::Durable, |at| self.open[at].options[picks.0[at]])
                })
            })
            .collect()
    }
}

/// One option for each open sector of [`Choices`].
#[derive(Clone, Debug)]
pub struct Picks(Vec<usize>);

/// A number that tells one array's durable content from any other.
pub fn print(disks: &[SimDisk]) -> u64 {
    combine(disks.iter().map(SimDisk::print))
}

fn combine(prints: impl Iterator<Item = u64>) -> u64 {
    prints.zip(0..).fold(0, |sum: u64, (print, index)| {
        sum.wrapping_add(mix(print ^ index))
    })
}
