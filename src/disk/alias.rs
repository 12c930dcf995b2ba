//! Is anything given twice under two names?
//!
//! An array on which two parts share one byte destroys itself. Paths do not tell: there are links, there
//! are partitions of a disk that is given as well, and there are loop devices over a file that is. So
//! every place is followed down to all that it lies on, and two places overlap if they meet anywhere:
//!
//! ```text
//!   /dev/loop0p1 -> loop0 from 1 MiB on -> /srv/image from 1 MiB on
//!                                                |
//!   /srv/hard-link-to-image ---------------------+   they meet here
//! ```
//!
//! Nothing is opened for this. What is built on a disk in other ways (device mapper, md) holds the disk
//! against everybody else, so that the fence meets it.

use super::identity::{DeviceNumber, Identity, Located};
use crate::kernel::Kernel;
use crate::units::Offset;
use std::fs;
use std::ops::Range;
use std::path::PathBuf;

/// How many things may lie on each other. A loop device over a file on a loop device is already rare.
const LAYERS_MAX: usize = 16;

/// An extent of a part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place<'a> {
    /// What it is on.
    pub part: &'a Located,
    /// Where on it, in bytes.
    pub extent: Range<Offset>,
}

impl<'a> Place<'a> {
    /// All of a part, however large it is.
    pub fn whole(part: &'a Located) -> Place<'a> {
        Place {
            part,
            extent: Offset(0)..Offset(u64::MAX),
        }
    }
}

/// Two places share bytes.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{a} and {b} overlap: {why}; give each a disk, a partition or a file of its own")]
pub struct Overlap {
    /// The one that was given first.
    pub a: PathBuf,
    /// The other.
    pub b: PathBuf,
    /// How.
    pub why: Why,
}

/// How two places come to share bytes.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Why {
    /// Two names, or one name twice.
    #[error("both are {0}")]
    Same(Identity),
    /// One lies on the other.
    #[error("{} is {how} the other", above.display())]
    Above {
        /// The one that lies on the other.
        above: PathBuf,
        /// In which way.
        how: Step,
    },
    /// Both lie on something that was not given.
    #[error("both lie on {0}")]
    OnTheSame(Identity),
}

/// How a thing lies on the next one below.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Step {
    /// A partition on its disk.
    #[error("a partition of")]
    Partition,
    /// A loop device on its file.
    #[error("a loop device over")]
    Loop,
}

/// One thing that a place lies on.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Layer {
    on: Identity,
    extent: Range<u64>,
    /// How the place got here from what it was given as; `None` for that itself.
    step: Option<Step>,
}

/// Finds the first two places, in the order in which they are given, that share bytes.
pub fn check(kernel: &Kernel, places: &[Place<'_>]) -> Result<(), Overlap> {
    let layers: Vec<Vec<Layer>> = places.iter().map(|place| layers(kernel, place)).collect();
    for (i, a) in places.iter().enumerate() {
        for (j, b) in places.iter().enumerate().skip(i + 1) {
            if let Some(why) = meeting(a, &layers[i], b, &layers[j]) {
                return Err(Overlap {
                    a: a.part.path.clone(),
                    b: b.part.path.clone(),
                    why,
                });
            }
        }
    }
    Ok(())
}

/// All that a place lies on, from itself downwards.
fn layers(kernel: &Kernel, place: &Place<'_>) -> Vec<Layer> {
    let mut layer = Layer {
        on: place.part.identity,
        extent: place.extent.start.0..place.extent.end.0,
        step: None,
    };
    let mut found = vec![layer.clone()];
    while found.len() < LAYERS_MAX
        && let Identity::Device(number) = layer.on
        && let Some(below) = below(kernel, number, &layer)
    {
        found.push(below.clone());
        layer = below;
    }
    found
}

fn below(kernel: &Kernel, number: DeviceNumber, layer: &Layer) -> Option<Layer> {
    if let Some(partition) = kernel.partition(number) {
        let extent = moved(&layer.extent, partition.start, partition.size);
        return Some(Layer {
            on: Identity::Device(partition.disk),
            extent,
            step: Some(Step::Partition),
        });
    }
    let device = kernel
        .loops()
        .into_iter()
        .find(|device| device.number == number)?;
    let on = Identity::of(&fs::metadata(&device.backing).ok()?).ok()?;
    let extent = moved(
        &layer.extent,
        device.offset,
        device.size.unwrap_or(u64::MAX),
    );
    Some(Layer {
        on,
        extent,
        step: Some(Step::Loop),
    })
}

/// An extent of a thing of `size` bytes, seen from the one below, where that thing begins at `start`.
fn moved(extent: &Range<u64>, start: u64, size: u64) -> Range<u64> {
    extent.start.min(size).saturating_add(start)..extent.end.min(size).saturating_add(start)
}

/// Where two places meet, if they do: the uppermost layer that they have in common.
fn meeting(a: &Place<'_>, a_layers: &[Layer], b: &Place<'_>, b_layers: &[Layer]) -> Option<Why> {
    for x in a_layers {
        for y in b_layers {
            if x.on == y.on && x.extent.start < y.extent.end && y.extent.start < x.extent.end {
                return Some(match (x.step, y.step) {
                    (None, None) => Why::Same(x.on),
                    (Some(how), None) => Why::Above {
                        above: a.part.path.clone(),
                        how,
                    },
                    (None, Some(how)) => Why::Above {
                        above: b.part.path.clone(),
                        how,
                    },
                    (Some(_), Some(_)) => Why::OnTheSame(x.on),
                });
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    //! Goal: every way of giving one byte twice is found, and neighbours are left alone. Method: real files
    //! with links; machines laid out with partitions and loop devices. Real loop devices are in
    //! `device_tests`.

    use super::*;
    use crate::kernel::layout::Machine;
    use std::path::Path;

    fn device(path: &str, number: &str) -> Located {
        let identity = Identity::Device(number.parse().unwrap());
        Located {
            path: path.into(),
            canonical: path.into(),
            identity,
            file_size: 0,
        }
    }

    fn file(folder: &Path, name: &str) -> Located {
        let path = folder.join(name);
        if !path.exists() {
            fs::write(&path, [0; 4096]).unwrap();
        }
        Located::find(&path).unwrap()
    }

    fn whole(kernel: &Kernel, parts: &[&Located]) -> Option<Why> {
        let places: Vec<Place<'_>> = parts.iter().map(|part| Place::whole(part)).collect();
        check(kernel, &places).err().map(|overlap| overlap.why)
    }

    #[test]
    fn a_link_to_a_file_that_is_also_given_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let kernel = Kernel::running();
        let (one, other) = (file(folder.path(), "one"), file(folder.path(), "other"));
        fs::hard_link(&one.path, folder.path().join("hard")).unwrap();
        std::os::unix::fs::symlink("one", folder.path().join("soft")).unwrap();
        for link in ["hard", "soft"] {
            let link = file(folder.path(), link);
            assert_eq!(
                whole(&kernel, &[&one, &other, &link]),
                Some(Why::Same(one.identity))
            );
        }
        assert_eq!(whole(&kernel, &[&one, &other]), None);
        assert_eq!(whole(&kernel, &[&one, &one]), Some(Why::Same(one.identity)));
    }

    #[test]
    fn extents_of_one_thing_may_touch_and_not_overlap_by_a_sector() {
        let kernel = Kernel::running();
        let disk = device("/dev/sda", "8:0");
        let try_two = |first: Range<u64>, second: Range<u64>, overlaps: bool| {
            let place = |extent: &Range<u64>| Place {
                part: &disk,
                extent: Offset(extent.start)..Offset(extent.end),
            };
            let found = check(&kernel, &[place(&first), place(&second)]);
            assert_eq!(found.is_err(), overlaps, "{first:?} and {second:?}");
        };
        try_two(0..4096, 4096..8192, false);
        try_two(4096..8192, 0..4096, false);
        try_two(0..4096, 3584..8192, true);
        try_two(3584..8192, 0..4096, true);
        try_two(0..8192, 512..1024, true);
        try_two(0..0, 0..4096, false);
    }

    #[test]
    fn a_partition_of_a_disk_that_is_also_given_is_found_and_its_neighbour_is_not() {
        let machine = Machine::empty();
        machine
            .disk("sda", "8:0")
            .partition("sda", "sda1", "8:1", 2048)
            .partition("sda", "sda2", "8:2", 4096);
        let kernel = machine.kernel();
        let (sda, sda1, sda2) = (
            device("/dev/sda", "8:0"),
            device("/dev/sda1", "8:1"),
            device("/dev/sda2", "8:2"),
        );
        let partition_of = |above: &Located| {
            Some(Why::Above {
                above: above.path.clone(),
                how: Step::Partition,
            })
        };
        assert_eq!(whole(&kernel, &[&sda, &sda1]), partition_of(&sda1));
        assert_eq!(whole(&kernel, &[&sda2, &sda]), partition_of(&sda2));
        assert_eq!(whole(&kernel, &[&sda1, &sda2]), None);

        let before_sda1 = Place {
            part: &sda,
            extent: Offset(0)..Offset(1 << 20),
        };
        assert_eq!(check(&kernel, &[before_sda1, Place::whole(&sda1)]), Ok(()));
        let one_sector_more = Place {
            part: &sda,
            extent: Offset(0)..Offset((1 << 20) + 512),
        };
        check(&kernel, &[one_sector_more, Place::whole(&sda1)]).unwrap_err();
    }

    #[test]
    fn a_loop_device_over_a_file_that_is_also_given_is_found_through_its_partition() {
        let machine = Machine::empty();
        let folder = tempfile::tempdir().unwrap();
        let (image, other) = (file(folder.path(), "image"), file(folder.path(), "other"));
        fs::hard_link(&image.path, folder.path().join("hard")).unwrap();
        machine
            .loop_device("loop0", "7:0", &folder.path().join("hard"), 0)
            .partition("loop0", "loop0p1", "259:0", 2048);
        let kernel = machine.kernel();
        let loop0p1 = device("/dev/loop0p1", "259:0");
        assert_eq!(
            whole(&kernel, &[&image, &loop0p1]),
            Some(Why::Above {
                above: "/dev/loop0p1".into(),
                how: Step::Loop
            })
        );
        assert_eq!(whole(&kernel, &[&other, &loop0p1]), None);
    }

    #[test]
    fn two_loop_devices_meet_in_a_file_that_was_not_given() {
        let machine = Machine::empty();
        let folder = tempfile::tempdir().unwrap();
        let image = file(folder.path(), "image");
        machine
            .loop_device("loop0", "7:0", &image.path, 0)
            .loop_device("loop1", "7:1", &image.path, 1 << 20);
        let (loop0, loop1) = (device("/dev/loop0", "7:0"), device("/dev/loop1", "7:1"));
        assert_eq!(
            whole(&machine.kernel(), &[&loop0, &loop1]),
            Some(Why::OnTheSame(image.identity))
        );
        machine.file("sys/devices/pci/block/loop0/loop/sizelimit", "1048576\n");
        assert_eq!(
            whole(&machine.kernel(), &[&loop0, &loop1]),
            None,
            "the first now ends where the second begins"
        );
    }

    #[test]
    fn devices_that_lie_on_themselves_do_not_hang_the_check() {
        let machine = Machine::empty();
        // Only a kernel in disorder says this, or somebody who lays out /sys.
        machine
            .disk("sda", "8:0")
            .partition("sda", "sda1", "8:1", 0)
            .file("sys/devices/pci/block/sda/dev", "8:1\n");
        let sda1 = device("/dev/sda1", "8:1");
        assert_eq!(
            layers(&machine.kernel(), &Place::whole(&sda1)).len(),
            LAYERS_MAX
        );
        assert_eq!(whole(&machine.kernel(), &[&sda1]), None);
    }

    #[test]
    fn an_overlap_is_told_in_one_sentence() {
        let machine = Machine::empty();
        machine
            .disk("sda", "8:0")
            .partition("sda", "sda1", "8:1", 2048);
        let (sda, sda1) = (device("/dev/sda", "8:0"), device("/dev/sda1", "8:1"));
        let overlap = check(
            &machine.kernel(),
            &[Place::whole(&sda), Place::whole(&sda1)],
        )
        .unwrap_err();
        let expected = "/dev/sda and /dev/sda1 overlap: /dev/sda1 is a partition of the other; \
                        give each a disk, a partition or a file of its own";
        assert_eq!(overlap.to_string(), expected);
    }
}
