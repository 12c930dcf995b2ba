//! Where devices are mounted or used as swap.

use super::{
    DeviceNumber, Identity, Kernel, bytes, device_at, entries, leads_to, name_of, unescaped,
};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// One line of `mountinfo`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mount {
    /// The number of the filesystem: of the device, but for btrfs and others, which make one up.
    pub device: DeviceNumber,
    /// Where it is mounted.
    pub point: PathBuf,
    /// What was mounted, as it was given then.
    pub source: PathBuf,
    /// Whether mount namespaces that were made from this one follow it.
    pub shared: bool,
}

impl Kernel {
    /// The mounts that this process sees, in the order in which they were made.
    pub fn own_mounts(&self) -> Vec<Mount> {
        parse_mountinfo(&bytes(&self.path("proc/self/mountinfo")).unwrap_or_default())
    }

    /// Whether a mount namespace that this process makes would follow what is mounted and unmounted here.
    pub fn mounts_are_shared(&self) -> bool {
        let mounts = self.own_mounts();
        let root = mounts.iter().rfind(|mount| mount.point == Path::new("/"));
        root.is_some_and(|root| root.shared)
    }

    /// Where one of `devices` is mounted: in our view of the mounts first, then in every other.
    pub fn mount_points(&self, devices: &[DeviceNumber]) -> Vec<PathBuf> {
        let names: Vec<Option<String>> = devices.iter().map(|d| self.device_name(*d)).collect();
        let is_ours = |mount: &Mount| {
            let mut pairs = devices.iter().zip(&names);
            pairs.any(|(number, name)| is_of(mount, *number, name.as_deref()))
        };
        let mut points: Vec<PathBuf> = Vec::new();
        for mount in self.all_mounts().into_iter().filter(is_ours) {
            if !points.contains(&mount.point) {
                points.push(mount.point);
            }
        }
        if points.is_empty() {
            let names = names.iter().flatten();
            points.extend(names.filter_map(|name| self.btrfs_with(name)));
        }
        points
    }

    /// The mounts of every mount namespace, ours first.
    fn all_mounts(&self) -> Vec<Mount> {
        let namespace = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
        let mut seen = BTreeSet::from([namespace(&self.path("proc/self"))]);
        let mut mounts = self.own_mounts();
        for pid in self.processes() {
            let process = self.path(&format!("proc/{pid}"));
            if seen.insert(namespace(&process)) {
                let list = bytes(&process.join("mountinfo")).unwrap_or_default();
                mounts.extend(parse_mountinfo(&list));
            }
        }
        mounts
    }

    /// Whether what is mounted lies on `device`, on a partition of it, or on something that is built on
    /// them.
    pub fn lies_on(&self, mount: &Mount, device: DeviceNumber) -> bool {
        [Some(mount.device), source_device(mount)]
            .into_iter()
            .flatten()
            .any(|found| self.stands_on(found, device))
    }

    /// A mounted btrfs that has the device among its own; `mountinfo` names only one of them.
    fn btrfs_with(&self, device: &str) -> Option<PathBuf> {
        let filesystems = entries(&self.path("sys/fs/btrfs"));
        let found = filesystems
            .into_iter()
            .find(|filesystem| filesystem.join("devices").join(device).exists())?;
        Some(PathBuf::from(format!("(btrfs {})", name_of(&found)?)))
    }

    /// Whether it is swap, as a device or as a file.
    pub fn is_swap(&self, identity: Identity) -> bool {
        let content = bytes(&self.path("proc/swaps")).unwrap_or_default();
        let lines = content.split(|byte| *byte == b'\n').skip(1);
        lines
            .filter_map(|line| line.split(|byte| matches!(byte, b' ' | b'\t')).next())
            .any(|path| leads_to(&unescaped(path), identity))
    }
}

/// Whether a mount is of this device: by its number, or by what its source leads to or is called. The
/// source may be a path in another view of the files, hence the name.
fn is_of(mount: &Mount, number: DeviceNumber, name: Option<&str>) -> bool {
    let named = name.is_some_and(|name| mount.source == Path::new("/dev").join(name));
    mount.device == number || named || source_device(mount) == Some(number)
}

/// The device that a mount's source leads to. Only what lies under `/dev` is looked up: anything else may
/// be on a file server that does not answer.
fn source_device(mount: &Mount) -> Option<DeviceNumber> {
    mount
        .source
        .starts_with("/dev")
        .then(|| device_at(&mount.source))
        .flatten()
}

/// `36 35 8:1 /root /mnt opts shared:1 - ext4 /dev/sda1 opts`, the number of optional fields before `-`
/// being free. Lines that look otherwise are passed over.
fn parse_mountinfo(text: &[u8]) -> Vec<Mount> {
    let parse = |line: &[u8]| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let dash = fields
            .iter()
            .position(|field| *field == b"-")
            .filter(|dash| *dash >= 6)?;
        Some(Mount {
            device: std::str::from_utf8(fields.get(2)?).ok()?.parse().ok()?,
            point: unescaped(fields.get(4)?),
            source: unescaped(fields.get(dash + 2)?),
            shared: fields[6..dash]
                .iter()
                .any(|field| field.starts_with(b"shared:")),
        })
    };
    text.split(|byte| *byte == b'\n')
        .filter_map(parse)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::layout::Machine;
    use super::*;

    fn number(text: &str) -> DeviceNumber {
        text.parse().unwrap()
    }

    #[test]
    fn a_machine_whose_proc_or_sys_is_not_mounted_is_not_taken_for_an_idle_one() {
        let machine = Machine::empty();
        let hidden = |machine: &Machine| machine.kernel().check_visible().unwrap_err().to_string();
        assert!(hidden(&machine).contains("proc/self/mountinfo: "));
        machine.file("proc/self/mountinfo", "");
        assert!(hidden(&machine).contains("sys/dev/block: "));
        machine.disk("sda", "8:0");
        machine.kernel().check_visible().unwrap();
    }

    #[test]
    fn mounts_are_shared_if_the_root_is() {
        for (options, expected) in [("shared:1 ", true), ("", false), ("master:1 ", false)] {
            let machine = Machine::empty();
            machine.file(
                "proc/self/mountinfo",
                format!(
                    "21 1 8:1 / / rw {options}- ext4 /dev/sda rw\n\
                     22 21 8:2 / /mnt rw shared:9 - ext4 /dev/sdb rw\n"
                ),
            );
            assert_eq!(machine.kernel().mounts_are_shared(), expected, "{options}");
        }
        assert!(!Machine::empty().kernel().mounts_are_shared());
    }

    #[test]
    fn a_mount_is_found_by_number_and_by_name() {
        let machine = Machine::empty();
        machine
            .disk("sdb", "8:16")
            .disk("sdc", "8:32")
            .disk("sdd", "8:48");
        machine.file(
            "proc/self/mountinfo",
            "garbage\n\
             22 1 8:16 / /mnt/a\\040b rw,noatime shared:1 master:2 - ext4 /dev/sdb rw\n\
             23 1 0:45 /sub /mnt/c rw - btrfs /dev/sdc rw\n",
        );
        let kernel = machine.kernel();
        assert_eq!(
            kernel.mount_points(&[number("8:16")]),
            [PathBuf::from("/mnt/a b")]
        );
        assert_eq!(
            kernel.mount_points(&[number("8:32")]),
            [PathBuf::from("/mnt/c")]
        );
        assert_eq!(
            kernel.mount_points(&[number("8:48")]),
            Vec::<PathBuf>::new()
        );
        assert_eq!(
            kernel.mount_points(&[number("8:32"), number("8:16")]),
            [PathBuf::from("/mnt/a b"), PathBuf::from("/mnt/c")]
        );
    }

    #[test]
    fn a_mount_in_another_namespace_is_found_once() {
        let machine = Machine::empty();
        machine.disk("sdb", "8:16");
        let line = "22 1 8:16 / /mnt rw - ext4 /dev/sdb rw\n";
        let container = format!("{line}23 1 8:16 / /srv rw - ext4 /dev/sdb rw\n");
        for (process, namespace, list) in [
            ("self", "mnt:[1]", ""),
            ("70", "mnt:[1]", ""),
            ("71", "mnt:[2]", line),
            ("72", "mnt:[3]", &container),
            ("73", "mnt:[3]", &container),
        ] {
            machine.file(&format!("proc/{process}/mountinfo"), list);
            machine.link(&format!("proc/{process}/ns/mnt"), Path::new(namespace));
        }
        assert_eq!(
            machine.kernel().mount_points(&[number("8:16")]),
            [PathBuf::from("/mnt"), PathBuf::from("/srv")]
        );
    }

    #[test]
    fn mountinfo_is_read_whatever_stands_in_it() {
        let text =
            b"36 35 98:0 / /mnt/with\\040blank rw,noatime shared:1 master:2 - ext4 /dev/sdb rw\n\
                     37 35 0:45 /sub /back\\134slash rw - btrfs /dev/ublkb0 rw\n\
                     nonsense\n38 35 x:y / / rw - ext4 /dev/sdc rw\n39 35 1:2 / / rw -\n\
                     40 35 1:3 / /odd\\9 rw - tmpfs none rw";
        let mounts = parse_mountinfo(text);
        let points: Vec<&str> = mounts
            .iter()
            .map(|mount| mount.point.to_str().unwrap())
            .collect();
        assert_eq!(points, ["/mnt/with blank", "/back\\slash", "/odd\\9"]);
        assert_eq!(mounts[0].device, number("98:0"));
        assert_eq!(mounts[1].source, Path::new("/dev/ublkb0"));
        proptest::proptest!(|(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300))| {
            parse_mountinfo(&bytes);
        });
    }

    #[test]
    fn the_second_disk_of_a_mounted_btrfs_is_found() {
        let machine = Machine::empty();
        machine
            .disk("sdd", "8:48")
            .file("sys/fs/btrfs/1234-abcd/devices/sdd/dev", "8:48\n");
        assert_eq!(
            machine.kernel().mount_points(&[number("8:48")]),
            [PathBuf::from("(btrfs 1234-abcd)")]
        );
    }

    #[test]
    fn swap_is_recognised_by_what_its_path_leads_to() {
        let machine = Machine::empty();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("swap file");
        fs::write(&file, b"x").unwrap();
        let identity = Identity::of(&fs::metadata(&file).unwrap()).unwrap();
        assert!(!machine.kernel().is_swap(identity), "no list");
        let escaped = file.display().to_string().replace(' ', "\\040");
        machine.file(
            "proc/swaps",
            format!("Filename\tType\tSize\tUsed\tPriority\n{escaped}  file\t1024\t0\t-2\n"),
        );
        assert!(machine.kernel().is_swap(identity));
    }
}
