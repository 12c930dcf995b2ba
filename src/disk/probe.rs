//! What does a disk carry already?
//!
//! Whoever labels a disk destroys what is on it, and the commonest way to lose a filesystem is a wrong
//! letter in a path. So a disk is searched for what others leave on theirs: the magic numbers of
//! filesystems, swap, partition tables, RAID members, volumes and caches, at its beginning and at its
//! end, where GPT keeps its second header and md, GEOM and others their only one.
//!
//! The search is a table: a name, where the structure begins, where in it the magic lies, and a further
//! check where the magic is short. It errs towards finding: a false alarm costs the user a `--force`.
//! Our own labels are looked at elsewhere.

use super::buffer::AlignedBuffer;
use super::{Disk, DiskError};
use crate::units::{FRAME, KIB, MIB, Offset, SECTOR, round_down, to_u64, to_usize};
use std::collections::BTreeMap;
use std::fmt;

/// What kind of thing was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Files.
    Filesystem,
    /// The journal of a filesystem that is elsewhere.
    FilesystemJournal,
    /// Swapped memory.
    Swap,
    /// Partitions.
    PartitionTable,
    /// One of several disks that make up a larger one.
    RaidMember,
    /// A part of a volume manager.
    Volume,
    /// Something that cannot be read without a key.
    Encrypted,
    /// A cache, or a disk behind one.
    Cache,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Filesystem => "filesystem",
            FilesystemJournal => "filesystem journal",
            Swap => "swap space",
            PartitionTable => "partition table",
            RaidMember => "RAID member",
            Volume => "volume",
            Encrypted => "encrypted volume",
            Cache => "cache or cached disk",
        })
    }
}

/// Something that is on a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// What people call it.
    pub name: &'static str,
    /// What kind of thing it is.
    pub class: Class,
    /// Where its magic number lies.
    pub offset: Offset,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} (at byte {})", self.name, self.class, self.offset)
    }
}

/// Searches a disk; what is found comes in the order of its place.
pub fn probe(disk: &mut dyn Disk) -> Result<Vec<Found>, DiskError> {
    let mut disk = Peek::at(disk);
    let mut found = Vec::new();
    for signature in SIGNATURES {
        found.extend(signature.find(&mut disk)?);
    }
    found.extend(zfs(&mut disk)?);
    found.extend(promise(&mut disk)?);
    // The sector that protects a GPT from older programs is worth a word only where that GPT is gone.
    if found.iter().any(|found| found.name == GPT) {
        found.retain(|found| found.name != PROTECTIVE);
    }
    found.sort_by_key(|found| found.offset);
    Ok(found)
}

/// Where a structure begins.
#[derive(Clone, Copy)]
enum Base {
    /// So many bytes from the beginning.
    Start(u64),
    /// So many bytes before the end.
    End(u64),
    /// Where this says, from the size of the disk.
    At(fn(u64) -> Option<u64>),
}

impl Base {
    fn resolve(self, size: u64) -> Option<u64> {
        match self {
            Start(offset) => Some(offset),
            End(distance) => size.checked_sub(distance),
            At(of_size) => of_size(size),
        }
    }
}

/// How to recognise one thing.
struct Signature {
    name: &'static str,
    class: Class,
    base: Base,
    /// Where in the structure the magic lies.
    magic_at: usize,
    magic: &'static [u8],
    /// What else must hold of the structure.
    check: fn(&Structure) -> bool,
}

impl Signature {
    fn find(&self, disk: &mut Peek<'_>) -> Result<Option<Found>, DiskError> {
        let Some(base) = self.base.resolve(disk.size) else {
            return Ok(None);
        };
        let structure = disk.structure(base)?;
        let matches = structure.has(self.magic_at, self.magic) && (self.check)(&structure);
        let offset = Offset(base + to_u64(self.magic_at));
        Ok(matches.then_some(Found {
            name: self.name,
            class: self.class,
            offset,
        }))
    }
}

/// A signature whose magic is long enough to be believed.
const fn plain(
    name: &'static str,
    class: Class,
    base: Base,
    magic_at: usize,
    magic: &'static [u8],
) -> Signature {
    checked(name, class, base, magic_at, magic, |_| true)
}

const fn checked(
    name: &'static str,
    class: Class,
    base: Base,
    magic_at: usize,
    magic: &'static [u8],
    check: fn(&Structure) -> bool,
) -> Signature {
    Signature {
        name,
        class,
        base,
        magic_at,
        magic,
        check,
    }
}

use Base::{At, End, Start};
use Class::{
    Cache, Encrypted, Filesystem, FilesystemJournal, PartitionTable, RaidMember, Swap, Volume,
};

const GPT: &str = "GPT";
const PROTECTIVE: &str = "GPT (protective MBR)";

const BOOT: &[u8] = &[0x55, 0xaa];
const EXT: &[u8] = &[0x53, 0xef];
const UFS1_LITTLE: &[u8] = &[0x54, 0x19, 0x01, 0x00];
const UFS1_BIG: &[u8] = &[0x00, 0x01, 0x19, 0x54];
const UFS2_LITTLE: &[u8] = &[0x19, 0x01, 0x54, 0x19];
const UFS2_BIG: &[u8] = &[0x19, 0x54, 0x01, 0x19];
/// Where the magic lies in the superblock of UFS.
const UFS_MAGIC: usize = 1372;
const MD_LITTLE: &[u8] = &[0xfc, 0x4e, 0x2b, 0xa9];
const MD_BIG: &[u8] = &[0xa9, 0x2b, 0x4e, 0xfc];
const BCACHE: &[u8] = &[
    0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81,
];
const BCACHEFS: &[u8] = &[
    0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d, 0xf7, 0xef,
];
const STRATIS: &[u8] = b"!Stra0tis\x86\xff\x02^Arh";

const F2FS: &[u8] = &[0x10, 0x20, 0xf5, 0xf2];
/// Where the magic lies in the superblock of System V, which is at one of four places.
const SYSV_MAGIC: usize = 504;
const SYSV_LITTLE: &[u8] = &[0x20, 0x7e, 0x18, 0xfd];
const SYSV_BIG: &[u8] = &[0xfd, 0x18, 0x7e, 0x20];

#[rustfmt::skip] // one row a line
const SIGNATURES: &[Signature] = &[
    // Filesystems of Linux.
    checked("ext2", Filesystem, Start(1024), 56, EXT, |sb| ext(sb) == Some(Ext::Two)),
    checked("ext3", Filesystem, Start(1024), 56, EXT, |sb| ext(sb) == Some(Ext::Three)),
    checked("ext4", Filesystem, Start(1024), 56, EXT, |sb| ext(sb) == Some(Ext::Four)),
    checked("ext3 or ext4", FilesystemJournal, Start(1024), 56, EXT, |sb| ext(sb) == Some(Ext::Journal)),
    plain("XFS", Filesystem, Start(0), 0, b"XFSB"),
    plain("XFS", FilesystemJournal, Start(0), 0, &[0xfe, 0xed, 0xba, 0xbe]),
    plain("btrfs", Filesystem, Start(64 * KIB), 64, b"_BHRfS_M"),
    plain("btrfs (second superblock)", Filesystem, Start(64 * MIB), 64, b"_BHRfS_M"),
    plain("bcachefs", Filesystem, Start(4096), 24, BCACHEFS),
    plain("F2FS", Filesystem, Start(1024), 0, F2FS),
    plain("F2FS (second superblock)", Filesystem, Start(4096 + 1024), 0, F2FS),
    plain("JFS", Filesystem, Start(32 * KIB), 0, b"JFS1"),
    plain("JFS (second superblock)", Filesystem, Start(60 * KIB), 0, b"JFS1"),
    plain("ReiserFS", Filesystem, Start(64 * KIB), 52, b"ReIsEr"),
    plain("ReiserFS", Filesystem, Start(8 * KIB), 52, b"ReIsEr"),
    plain("ReiserFS", Filesystem, Start(8 * KIB), 20, b"ReIsEr"),
    plain("Reiser4", Filesystem, Start(64 * KIB), 0, b"ReIsEr4"),
    checked("NILFS2", Filesystem, Start(1024), 6, &[0x34, 0x34], |sb| sb.u32(0) == Some(2)),
    checked("NILFS2 (second superblock)", Filesystem, At(nilfs2_second), 6, &[0x34, 0x34], |sb| sb.u32(0) == Some(2)),
    plain("GFS2", Filesystem, Start(64 * KIB), 0, &[0x01, 0x16, 0x19, 0x70]),
    plain("OCFS2", Filesystem, Start(1024), 0, b"OCFSV2"),
    plain("OCFS2", Filesystem, Start(2048), 0, b"OCFSV2"),
    plain("OCFS2", Filesystem, Start(4096), 0, b"OCFSV2"),
    plain("OCFS2", Filesystem, Start(8192), 0, b"OCFSV2"),
    plain("OCFS", Filesystem, Start(8 * KIB), 0, b"OracleCFS"),
    plain("SquashFS", Filesystem, Start(0), 0, b"hsqs"),
    plain("SquashFS", Filesystem, Start(0), 0, b"sqsh"),
    plain("cramfs", Filesystem, Start(0), 0, &[0x45, 0x3d, 0xcd, 0x28]),
    plain("cramfs", Filesystem, Start(0), 0, &[0x28, 0xcd, 0x3d, 0x45]),
    plain("romfs", Filesystem, Start(0), 0, b"-rom1fs-"),
    checked("Minix", Filesystem, Start(1024), 16, &[0x7f, 0x13], is_minix),
    checked("Minix", Filesystem, Start(1024), 16, &[0x8f, 0x13], is_minix),
    checked("Minix", Filesystem, Start(1024), 16, &[0x13, 0x7f], is_minix),
    checked("Minix", Filesystem, Start(1024), 16, &[0x13, 0x8f], is_minix),
    checked("Minix", Filesystem, Start(1024), 16, &[0x68, 0x24], is_minix),
    checked("Minix", Filesystem, Start(1024), 16, &[0x78, 0x24], is_minix),
    checked("Minix", Filesystem, Start(1024), 16, &[0x24, 0x68], is_minix),
    checked("Minix", Filesystem, Start(1024), 16, &[0x24, 0x78], is_minix),
    checked("Minix", Filesystem, Start(1024), 24, &[0x5a, 0x4d], is_minix_3),
    checked("Minix", Filesystem, Start(1024), 24, &[0x4d, 0x5a], is_minix_3),
    plain("zonefs", Filesystem, Start(0), 0, b"SFOZ"),
    plain("UBIFS", Filesystem, Start(0), 0, &[0x31, 0x18, 0x10, 0x06]),
    plain("mpool", Filesystem, Start(0), 0, b"mpoolDev"),
    plain("ExFS", Filesystem, Start(0), 0, b"EXFS"),
    plain("EROFS", Filesystem, Start(1024), 0, &[0xe2, 0xe1, 0xf5, 0xe0]),
    // Filesystems of others.
    checked("FAT", Filesystem, Start(0), 510, BOOT, is_fat),
    plain("exFAT", Filesystem, Start(0), 3, b"EXFAT   "),
    plain("NTFS", Filesystem, Start(0), 3, b"NTFS    "),
    plain("NTFS (second boot sector)", Filesystem, End(512), 3, b"NTFS    "),
    plain("ReFS", Filesystem, Start(0), 3, b"ReFS\0\0\0\0"),
    plain("UFS1", Filesystem, Start(0), UFS_MAGIC, UFS1_LITTLE),
    plain("UFS1", Filesystem, Start(0), UFS_MAGIC, UFS1_BIG),
    plain("UFS1", Filesystem, Start(8 * KIB), UFS_MAGIC, UFS1_LITTLE),
    plain("UFS1", Filesystem, Start(8 * KIB), UFS_MAGIC, UFS1_BIG),
    plain("UFS1", Filesystem, Start(64 * KIB), UFS_MAGIC, UFS1_LITTLE),
    plain("UFS1", Filesystem, Start(64 * KIB), UFS_MAGIC, UFS1_BIG),
    plain("UFS2", Filesystem, Start(0), UFS_MAGIC, UFS2_LITTLE),
    plain("UFS2", Filesystem, Start(0), UFS_MAGIC, UFS2_BIG),
    plain("UFS2", Filesystem, Start(8 * KIB), UFS_MAGIC, UFS2_LITTLE),
    plain("UFS2", Filesystem, Start(8 * KIB), UFS_MAGIC, UFS2_BIG),
    plain("UFS2", Filesystem, Start(64 * KIB), UFS_MAGIC, UFS2_LITTLE),
    plain("UFS2", Filesystem, Start(64 * KIB), UFS_MAGIC, UFS2_BIG),
    plain("UFS2", Filesystem, Start(256 * KIB), UFS_MAGIC, UFS2_LITTLE),
    plain("UFS2", Filesystem, Start(256 * KIB), UFS_MAGIC, UFS2_BIG),
    plain("ISO 9660", Filesystem, Start(32 * KIB), 1, b"CD001"),
    plain("High Sierra", Filesystem, Start(32 * KIB), 9, b"CDROM"),
    plain("UDF", Filesystem, Start(32 * KIB), 1, b"BEA01"),
    plain("UDF", Filesystem, Start(32 * KIB), 1, b"NSR02"),
    plain("UDF", Filesystem, Start(32 * KIB), 1, b"NSR03"),
    checked("HFS+", Filesystem, Start(1024), 0, b"H+", |sb| sb.has(2, &[0, 4])),
    checked("HFS+", Filesystem, Start(1024), 0, b"HX", |sb| sb.has(2, &[0, 5])),
    checked("HFS", Filesystem, Start(1024), 0, b"BD", is_hfs),
    plain("APFS", Filesystem, Start(0), 32, b"NXSB"),
    checked("HPFS", Filesystem, Start(8 * KIB), 0, &[0x49, 0xe8, 0x95, 0xf9], |sb| sb.has(512, &[0x49, 0x18, 0x91, 0xf9])),
    plain("VMFS", Filesystem, Start(2 * MIB), 0, &[0x5e, 0xf1, 0xab, 0x2f]),
    plain("VxFS", Filesystem, Start(1024), 0, &[0xf5, 0xfc, 0x01, 0xa5]),
    plain("VxFS", Filesystem, Start(8 * KIB), 0, &[0xa5, 0x01, 0xfc, 0xf5]),
    plain("BFS", Filesystem, Start(0), 0, &[0xce, 0xfa, 0xad, 0x1b]),
    plain("BeFS", Filesystem, Start(0), 32, b"BFS1"),
    plain("BeFS", Filesystem, Start(0), 32, b"1SFB"),
    plain("BeFS", Filesystem, Start(512), 32, b"BFS1"),
    plain("BeFS", Filesystem, Start(512), 32, b"1SFB"),
    plain("System V", Filesystem, Start(512), SYSV_MAGIC, SYSV_LITTLE),
    plain("System V", Filesystem, Start(512), SYSV_MAGIC, SYSV_BIG),
    plain("System V", Filesystem, Start(9 * KIB + 512), SYSV_MAGIC, SYSV_LITTLE),
    plain("System V", Filesystem, Start(9 * KIB + 512), SYSV_MAGIC, SYSV_BIG),
    plain("System V", Filesystem, Start(15 * KIB + 512), SYSV_MAGIC, SYSV_LITTLE),
    plain("System V", Filesystem, Start(15 * KIB + 512), SYSV_MAGIC, SYSV_BIG),
    plain("System V", Filesystem, Start(18 * KIB + 512), SYSV_MAGIC, SYSV_LITTLE),
    plain("System V", Filesystem, Start(18 * KIB + 512), SYSV_MAGIC, SYSV_BIG),
    plain("Xenix", Filesystem, Start(2 * KIB), 0, &[0x2b, 0x55, 0x44]),
    plain("Xenix", Filesystem, Start(2 * KIB), 0, &[0x44, 0x55, 0x2b]),
    plain("NetWare", Filesystem, Start(4 * KIB), 0, b"SPB5"),
    // Swap: at the end of the first page, however large a page is there; also with memory in it.
    plain("Linux", Swap, Start(0), 4096 - 10, b"SWAPSPACE2"),
    plain("Linux", Swap, Start(0), 4096 - 10, b"SWAP-SPACE"),
    plain("Linux", Swap, Start(4 * KIB), 4096 - 10, b"SWAPSPACE2"),
    plain("Linux", Swap, Start(12 * KIB), 4096 - 10, b"SWAPSPACE2"),
    plain("Linux", Swap, Start(28 * KIB), 4096 - 10, b"SWAPSPACE2"),
    plain("Linux", Swap, Start(60 * KIB), 4096 - 10, b"SWAPSPACE2"),
    plain("hibernated Linux", Swap, Start(0), 4096 - 10, b"S1SUSPEND"),
    plain("hibernated Linux", Swap, Start(0), 4096 - 10, b"S2SUSPEND"),
    plain("hibernated Linux", Swap, Start(0), 4096 - 10, b"ULSUSPEND"),
    plain("hibernated Linux", Swap, Start(0), 4096 - 10, b"LINHIB0001"),
    plain("hibernated Linux", Swap, Start(0), 4096 - 10, &[0xed, 0xc3, 0x02, 0xe9, 0x98, 0x56, 0xe5, 0x0c]),
    // Partition tables; the second header of GPT survives much that destroys the first.
    plain(GPT, PartitionTable, Start(512), 0, b"EFI PART"),
    plain(GPT, PartitionTable, Start(4096), 0, b"EFI PART"),
    checked(PROTECTIVE, PartitionTable, Start(0), 510, BOOT, |boot| is_partition_table(boot) && protects_gpt(boot)),
    plain("GPT (second header)", PartitionTable, End(512), 0, b"EFI PART"),
    plain("GPT (second header)", PartitionTable, End(4096), 0, b"EFI PART"),
    checked("MBR", PartitionTable, Start(0), 510, BOOT, |boot| is_partition_table(boot) && !protects_gpt(boot)),
    checked("BSD", PartitionTable, Start(512), 0, &[0x57, 0x45, 0x56, 0x82], |label| label.has(132, &[0x57, 0x45, 0x56, 0x82])),
    checked("Apple", PartitionTable, Start(512), 0, b"PM\0\0", |map| map.u32(4).is_some_and(|entries| entries != 0)),
    checked("Apple", PartitionTable, Start(2048), 0, b"PM\0\0", |map| map.u32(4).is_some_and(|entries| entries != 0)),
    plain("SGI", PartitionTable, Start(0), 0, &[0x0b, 0xe5, 0xa9, 0x41]),
    plain("AIX", PartitionTable, Start(0), 0, &[0xc9, 0xc2, 0xd4, 0xc1]),
    checked("Sun", PartitionTable, Start(0), 508, &[0xda, 0xbe], is_sun_label),
    // RAID members. GEOM, md 0.90 and 1.0 and the firmware formats are at the end.
    checked("md 1.1", RaidMember, Start(0), 0, MD_LITTLE, |sb| sb.u32(4) == Some(1)),
    checked("md 1.2", RaidMember, Start(4096), 0, MD_LITTLE, |sb| sb.u32(4) == Some(1)),
    checked("md 1.0", RaidMember, At(md_1_0), 0, MD_LITTLE, |sb| sb.u32(4) == Some(1)),
    checked("md 0.90", RaidMember, At(md_0_90), 0, MD_LITTLE, |sb| sb.u32(4) == Some(0)),
    checked("md 0.90", RaidMember, At(md_0_90), 0, MD_BIG, |sb| sb.u32(4) == Some(0)),
    plain("dm-raid", RaidMember, Start(0), 0, b"DmRd"),
    plain("Intel firmware", RaidMember, End(1024), 0, b"Intel Raid ISM Cfg Sig. "),
    plain("DDF firmware", RaidMember, End(512), 0, &[0xde, 0x11, 0xde, 0x11]),
    plain("DDF firmware", RaidMember, End(257 * 512), 0, &[0xde, 0x11, 0xde, 0x11]),
    plain("LSI firmware", RaidMember, End(512), 0, b"$XIDE$"),
    plain("NVIDIA firmware", RaidMember, End(1024), 0, b"NVIDIA"),
    plain("Adaptec firmware", RaidMember, End(512), 0, &[0x37, 0xfc, 0x4d, 0x1e]),
    plain("HighPoint firmware", RaidMember, Start(4608), 32, &[0xf0, 0x16, 0x78, 0x5a]),
    plain("HighPoint firmware", RaidMember, Start(4608), 32, &[0xfd, 0x16, 0x78, 0x5a]),
    plain("HighPoint firmware", RaidMember, End(11 * 512), 0, &[0xf3, 0x16, 0x78, 0x5a]),
    plain("HighPoint firmware", RaidMember, End(11 * 512), 0, &[0xfd, 0x16, 0x78, 0x5a]),
    // Two bytes and no more: the version must be one that there has been.
    checked("JMicron firmware", RaidMember, End(512), 0, b"JM", |sb| sb.u8(3).is_some_and(|major| major < 16)),
    checked("Silicon Image firmware", RaidMember, End(512), 96, &[0, 0, 0, 0x2f], is_silicon_image),
    checked("VIA firmware", RaidMember, End(512), 0, BOOT, is_via),
    plain("DRBD", RaidMember, At(last_whole_frame), 60, &[0x83, 0x74, 0x02, 0x6b]),
    plain("DRBD", RaidMember, At(last_whole_frame), 60, &[0x83, 0x74, 0x02, 0x6c]),
    plain("DRBD", RaidMember, At(last_whole_frame), 60, &[0x83, 0x74, 0x02, 0x6d]),
    plain("DRBD proxy", Volume, Start(0), 0, b"DRBDdlh*"),
    plain("DRBD manage", Volume, Start(0), 0, b"$DRBDmgr=q"),
    plain("gjournal", Volume, End(512), 0, b"GEOM::JOURNAL"),
    plain("gjournal", Volume, End(4096), 0, b"GEOM::JOURNAL"),
    checked("GEOM", Volume, End(512), 0, b"GEOM::", |label| !label.has(6, b"JOURNAL")),
    checked("GEOM", Volume, End(4096), 0, b"GEOM::", |label| !label.has(6, b"JOURNAL")),
    // Volumes.
    checked("LVM2", Volume, Start(0), 0, b"LABELONE", is_lvm2),
    checked("LVM2", Volume, Start(512), 0, b"LABELONE", is_lvm2),
    checked("LVM2", Volume, Start(1024), 0, b"LABELONE", is_lvm2),
    checked("LVM2", Volume, Start(1536), 0, b"LABELONE", is_lvm2),
    checked("LVM1", Volume, Start(0), 0, b"HM", |label| matches!(label.u16(2), Some(1 | 2))),
    plain("VMFS", Volume, Start(MIB), 0, &[0x0d, 0xd0, 0x01, 0xc0]),
    plain("Oracle ASM", Volume, Start(0), 32, b"ORCLDISK"),
    plain("UBI", Volume, Start(0), 0, b"UBI#"),
    plain("Stratis", Volume, Start(512), 4, STRATIS),
    plain("VDO", Volume, Start(0), 0, b"dmvdo001"),
    plain("Ceph BlueStore", Volume, Start(0), 0, b"bluestore block device"),
    plain("dm-integrity", Volume, Start(0), 0, b"integrt\0"),
    plain("dm-verity", Volume, Start(0), 0, b"verity\0\0"),
    plain("dm-snapshot", Volume, Start(0), 0, b"SnAp"),
    // Encrypted; the second header of LUKS2 lies behind the first, whose size varies.
    plain("LUKS", Encrypted, Start(0), 0, b"LUKS\xba\xbe"),
    plain("LUKS2 (second header)", Encrypted, Start(16 * KIB), 0, b"SKUL\xba\xbe"),
    plain("LUKS2 (second header)", Encrypted, Start(32 * KIB), 0, b"SKUL\xba\xbe"),
    plain("LUKS2 (second header)", Encrypted, Start(64 * KIB), 0, b"SKUL\xba\xbe"),
    plain("LUKS2 (second header)", Encrypted, Start(128 * KIB), 0, b"SKUL\xba\xbe"),
    plain("LUKS2 (second header)", Encrypted, Start(256 * KIB), 0, b"SKUL\xba\xbe"),
    plain("LUKS2 (second header)", Encrypted, Start(512 * KIB), 0, b"SKUL\xba\xbe"),
    plain("LUKS2 (second header)", Encrypted, Start(MIB), 0, b"SKUL\xba\xbe"),
    plain("LUKS2 (second header)", Encrypted, Start(2 * MIB), 0, b"SKUL\xba\xbe"),
    plain("LUKS2 (second header)", Encrypted, Start(4 * MIB), 0, b"SKUL\xba\xbe"),
    plain("BitLocker", Encrypted, Start(0), 3, b"-FVE-FS-"),
    // Caches.
    plain("bcache", Cache, Start(4096), 24, BCACHE),
    checked("dm-writecache", Cache, Start(0), 0, &[0x21, 0x93, 0x48, 0x23], |sb| sb.u32(4) == Some(1)),
];

/// Which of the family a superblock with the magic of ext2 belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ext {
    Two,
    Three,
    Four,
    Journal,
}

/// `None`: the magic is two bytes, and what surrounds it is no superblock.
fn ext(superblock: &Structure) -> Option<Ext> {
    const HAS_JOURNAL: u32 = 0x4;
    const IS_JOURNAL: u32 = 0x8;
    /// What ext3 knew: filetype, needs-recovery, meta-bg.
    const INCOMPAT_OF_EXT3: u32 = 0x2 | 0x4 | 0x10;
    /// And sparse-super, large-file, btree-dir.
    const RO_COMPAT_OF_EXT3: u32 = 0x1 | 0x2 | 0x4;
    /// Blocks are 1 KiB shifted by this; 64 KiB are the largest.
    const SHIFT_MAX: u32 = 6;

    superblock.u32(24).filter(|shift| *shift <= SHIFT_MAX)?;
    let (compat, incompat, ro_compat) = (
        superblock.u32(92)?,
        superblock.u32(96)?,
        superblock.u32(100)?,
    );
    if incompat & IS_JOURNAL != 0 {
        return Some(Ext::Journal);
    }
    if incompat & !INCOMPAT_OF_EXT3 != 0 || ro_compat & !RO_COMPAT_OF_EXT3 != 0 {
        return Some(Ext::Four);
    }
    Some(if compat & HAS_JOURNAL != 0 {
        Ext::Three
    } else {
        Ext::Two
    })
}

/// A boot sector whose geometry makes sense. The name of the type that often stands in it is a comment
/// and is not asked for.
fn is_fat(boot: &Structure) -> bool {
    let (Some(jump), Some(sector), Some(cluster)) = (boot.u8(0), boot.u16(11), boot.u8(13)) else {
        return false;
    };
    let (Some(reserved), Some(copies), Some(media)) = (boot.u16(14), boot.u8(16), boot.u8(21))
    else {
        return false;
    };
    (jump == 0xeb || jump == 0xe9)
        && (512..=4096).contains(&sector)
        && sector.is_power_of_two()
        && cluster.is_power_of_two()
        && reserved > 0
        && (1..=2).contains(&copies)
        && (media == 0xf0 || media >= 0xf8)
}

/// A boot sector with partitions, and not one of a filesystem.
fn is_partition_table(boot: &Structure) -> bool {
    /// Where the four entries are.
    const ENTRIES: [usize; 4] = [446, 462, 478, 494];
    let is_boot_flag = |entry: &usize| matches!(boot.u8(*entry), Some(0 | 0x80));
    let is_used = |entry: &usize| boot.u8(entry + 4) != Some(0) && boot.u32(entry + 12) != Some(0);
    let of_a_filesystem = is_fat(boot) || boot.has(3, b"NTFS    ") || boot.has(3, b"EXFAT   ");
    !of_a_filesystem && ENTRIES.iter().all(is_boot_flag) && ENTRIES.iter().any(is_used)
}

/// One of the entries is of the type that says: the real table is a GPT.
fn protects_gpt(boot: &Structure) -> bool {
    [446, 462, 478, 494]
        .iter()
        .any(|entry| boot.u8(entry + 4) == Some(0xee))
}

/// Bitmaps of inodes and of zones are there, and the numbers are not those of an ext superblock, which can
/// look like this.
fn is_minix(superblock: &Structure) -> bool {
    let is_some = |at| superblock.u16(at).is_some_and(|blocks| blocks != 0);
    is_some(4) && is_some(6) && !superblock.has(56, EXT)
}

/// The same for version 3, whose numbers of inodes are wider.
fn is_minix_3(superblock: &Structure) -> bool {
    let is_some = |at| superblock.u16(at).is_some_and(|blocks| blocks != 0);
    is_some(6) && is_some(8) && !superblock.has(56, EXT)
}

/// A number of one of eight disks, and 16-bit words that sum up to nothing.
fn is_silicon_image(metadata: &Structure) -> bool {
    /// Where the checksum is, the last of the words.
    const CHECKSUM: usize = 0x13e;
    let words = (0..=CHECKSUM)
        .step_by(2)
        .map(|at| metadata.u16(at).unwrap_or(0));
    let sum = words.fold(0, u16::wrapping_add);
    sum == 0 && metadata.u8(0x116).is_some_and(|disk| disk < 8)
}

/// A version that there has been, and a checksum over what comes before it.
fn is_via(metadata: &Structure) -> bool {
    /// Where the checksum is.
    const CHECKSUM: usize = 50;
    let bytes = (0..CHECKSUM).map(|at| metadata.u8(at).unwrap_or(0));
    let sum = bytes.fold(0, u8::wrapping_add);
    metadata.u8(2).is_some_and(|version| version <= 2) && metadata.u8(CHECKSUM) == Some(sum)
}

/// The sum of a Sun label, by exclusive or, is zero.
fn is_sun_label(label: &Structure) -> bool {
    let words = (0..SECTOR)
        .step_by(2)
        .map(|at| label.u16(to_usize(at)).unwrap_or(0));
    words.fold(0, |sum, word| sum ^ word) == 0
}

/// The size of an allocation block, big-endian, is whole sectors.
fn is_hfs(block: &Structure) -> bool {
    block
        .u32(20)
        .is_some_and(|size| size != 0 && size.swap_bytes() % 512 == 0)
}

fn is_lvm2(label: &Structure) -> bool {
    label.has(24, b"LVM2 001")
}

/// 8 KiB before the end, and then down to a multiple of 4 KiB.
fn md_1_0(size: u64) -> Option<u64> {
    Some(round_down(
        round_down(size, SECTOR).checked_sub(8 * KIB)?,
        4 * KIB,
    ))
}

/// The last whole 64 KiB.
fn md_0_90(size: u64) -> Option<u64> {
    round_down(size, 64 * KIB).checked_sub(64 * KIB)
}

/// Eight sectors before the end.
fn nilfs2_second(size: u64) -> Option<u64> {
    round_down(size, SECTOR).checked_sub(8 * SECTOR)
}

fn last_whole_frame(size: u64) -> Option<u64> {
    round_down(size, FRAME).checked_sub(FRAME)
}

/// ZFS keeps four labels of 256 KiB, two at each end, with a ring of 128 uberblocks in the upper half
/// of each. Any one of them is enough.
fn zfs(disk: &mut Peek<'_>) -> Result<Option<Found>, DiskError> {
    const LABEL: u64 = 256 * KIB;
    const RING: u64 = 128 * KIB;
    const LITTLE: &[u8] = &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0];
    const BIG: &[u8] = &[0, 0, 0, 0, 0, 0xba, 0xb1, 0x0c];

    let end = round_down(disk.size, LABEL);
    let labels = [
        Some(0),
        Some(LABEL),
        end.checked_sub(2 * LABEL),
        end.checked_sub(LABEL),
    ];
    for label in labels.into_iter().flatten() {
        for place in (label + RING..label + LABEL).step_by(1024) {
            let uberblock = disk.structure(place)?;
            if uberblock.has(0, LITTLE) || uberblock.has(0, BIG) {
                return Ok(Some(Found {
                    name: "ZFS",
                    class: RaidMember,
                    offset: Offset(place),
                }));
            }
        }
    }
    Ok(None)
}

/// The firmware of Promise leaves its name in one of a dozen sectors before the end, whichever suits the
/// geometry that it saw.
fn promise(disk: &mut Peek<'_>) -> Result<Option<Found>, DiskError> {
    const SECTORS_BEFORE_END: [u64; 13] = [
        16, 63, 255, 256, 399, 591, 675, 735, 911, 951, 974, 991, 3087,
    ];
    let size = round_down(disk.size, SECTOR);
    for sectors in SECTORS_BEFORE_END {
        let Some(place) = size.checked_sub(sectors * SECTOR) else {
            continue;
        };
        if disk.structure(place)?.has(0, b"Promise Technology, Inc.") {
            return Ok(Some(Found {
                name: "Promise firmware",
                class: RaidMember,
                offset: Offset(place),
            }));
        }
    }
    Ok(None)
}

/// Some bytes of a disk, 4 KiB or as many as there are before its end.
struct Structure(Vec<u8>);

impl Structure {
    fn has(&self, at: usize, bytes: &[u8]) -> bool {
        self.0.get(at..at + bytes.len()) == Some(bytes)
    }

    fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..at + N)?.try_into().ok()
    }

    fn u8(&self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    fn u16(&self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_le_bytes)
    }

    fn u32(&self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_le_bytes)
    }
}

/// A disk from which small things are read in whole, aligned pieces, each piece once.
struct Peek<'a> {
    disk: &'a mut dyn Disk,
    size: u64,
    pieces: BTreeMap<u64, AlignedBuffer>,
}

impl<'a> Peek<'a> {
    /// Read at a time.
    const PIECE: u64 = 64 * KIB;

    fn at(disk: &'a mut dyn Disk) -> Peek<'a> {
        let size = disk.size();
        Peek {
            disk,
            size,
            pieces: BTreeMap::new(),
        }
    }

    /// What lies at `base`.
    fn structure(&mut self, base: u64) -> Result<Structure, DiskError> {
        let end = base.saturating_add(FRAME).min(self.size);
        let mut bytes = Vec::new();
        let mut place = base;
        while place < end {
            let start = round_down(place, Peek::PIECE);
            let upto = end.min(start + Peek::PIECE);
            let piece = self.piece(start)?;
            bytes.extend_from_slice(&piece[to_usize(place - start)..to_usize(upto - start)]);
            place = upto;
        }
        Ok(Structure(bytes))
    }

    /// The piece that begins at `start`, which lies before the end; the last one is shorter.
    fn piece(&mut self, start: u64) -> Result<&AlignedBuffer, DiskError> {
        use std::collections::btree_map::Entry;
        match self.pieces.entry(start) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(unknown) => {
                let mut buffer =
                    AlignedBuffer::zeroed(to_usize(Peek::PIECE.min(self.size - start)));
                self.disk.read(Offset(start), &mut buffer)?;
                Ok(unknown.insert(buffer))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: whatever another program has put on a disk is seen. Method: images made by the programs
    //! themselves, where Debian has them and they work on a file; for the others images made here, by
    //! hand, from the formats' descriptions. A program that is not installed fails its test.

    use super::super::part::{Access, Part};
    use super::super::ram::Ram;
    use super::*;
    use std::path::Path;
    use std::process::Command;

    fn names(disk: &mut dyn Disk) -> Vec<&'static str> {
        probe(disk)
            .unwrap()
            .iter()
            .map(|found| found.name)
            .collect()
    }

    /// Runs a program that makes an image; `IMAGE` among the arguments stands for its path.
    fn run(command: &str, image: &Path) {
        let words = command
            .split_whitespace()
            .map(|word| word.replace("IMAGE", image.to_str().unwrap()));
        let mut words = words.collect::<Vec<_>>().into_iter();
        let program = words.next().unwrap();
        let path = format!(
            "{}:/usr/sbin:/sbin",
            std::env::var("PATH").unwrap_or_default()
        );
        let output = Command::new(&program)
            .args(words)
            .env("PATH", path)
            .stdin(std::process::Stdio::null())
            .output();
        let output = output.unwrap_or_else(|error| {
            panic!("{program} does not run ({error}): run ci/setup, which installs it")
        });
        assert!(
            output.status.success(),
            "{command}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    fn image(mebibytes: u64, commands: &[&str]) -> (tempfile::TempPath, Part) {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(mebibytes * MIB).unwrap();
        let path = file.into_temp_path();
        for command in commands {
            run(command, &path);
        }
        let part = Part::open(&path, Access::ReadWrite).unwrap();
        (path, part)
    }

    #[track_caller]
    fn check_image(mebibytes: u64, commands: &[&str], expected: &[&str]) {
        let (_path, mut part) = image(mebibytes, commands);
        assert_eq!(names(&mut part), expected, "{commands:?}");
    }

    #[test]
    fn ext2_ext3_ext4_and_their_journal_are_told_apart() {
        check_image(8, &["mke2fs -q -t ext2 IMAGE"], &["ext2"]);
        check_image(8, &["mke2fs -q -t ext3 IMAGE"], &["ext3"]);
        check_image(8, &["mke2fs -q -t ext4 IMAGE"], &["ext4"]);
        check_image(
            8,
            &["mke2fs -q -b 4096 -t ext4 -O ^has_journal IMAGE"],
            &["ext4"],
        );
        check_image(
            8,
            &["mke2fs -q -b 4096 -O journal_dev IMAGE"],
            &["ext3 or ext4"],
        );
    }

    #[test]
    fn xfs_is_found() {
        check_image(320, &["mkfs.xfs -q -f IMAGE"], &["XFS"]);
    }

    #[test]
    fn btrfs_is_found() {
        let expected = ["btrfs", "btrfs (second superblock)"];
        check_image(128, &["mkfs.btrfs -q -f IMAGE"], &expected);
    }

    #[test]
    fn f2fs_is_found() {
        let expected = ["F2FS", "F2FS (second superblock)"];
        check_image(64, &["mkfs.f2fs -q -f IMAGE"], &expected);
    }

    #[test]
    fn fat_of_every_width_is_found_and_is_no_partition_table() {
        for width in ["12", "16", "32"] {
            check_image(40, &[&format!("mkfs.vfat -F {width} IMAGE")], &["FAT"]);
        }
        check_image(40, &["mkfs.vfat -S 4096 -s 1 -F 16 IMAGE"], &["FAT"]);
    }

    #[test]
    fn exfat_and_ntfs_are_found_and_are_no_partition_tables() {
        check_image(8, &["mkfs.exfat IMAGE"], &["exFAT"]);
        let (_path, mut part) = image(8, &["mkfs.ntfs -q -F -Q IMAGE"]);
        assert_eq!(names(&mut part), ["NTFS", "NTFS (second boot sector)"]);
        part.zero(Offset(0), 4096).unwrap();
        assert_eq!(names(&mut part), ["NTFS (second boot sector)"]);
    }

    #[test]
    fn minix_of_every_version_is_found_and_is_no_ext() {
        for version in ["-1 -n 14", "-1 -n 30", "-2 -n 14", "-2 -n 30", "-3"] {
            check_image(8, &[&format!("mkfs.minix {version} IMAGE")], &["Minix"]);
        }
    }

    #[test]
    fn small_filesystems_of_util_linux_are_found() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), b"x").unwrap();
        check_image(1, &["mkfs.bfs IMAGE"], &["BFS"]);
        for order in ["little", "big"] {
            let command = format!("mkfs.cramfs -N {order} {} IMAGE", folder.path().display());
            check_image(1, &[&command], &["cramfs"]);
        }
    }

    #[test]
    fn ufs_of_both_versions_and_both_byte_orders_is_found() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), b"x").unwrap();
        for (version, order, expected) in [
            ("1", "le", "UFS1"),
            ("1", "be", "UFS1"),
            ("2", "le", "UFS2"),
            ("2", "be", "UFS2"),
        ] {
            let command = format!(
                "makefs -t ffs -B {order} -o version={version} -s 4m IMAGE {}",
                folder.path().display()
            );
            check_image(4, &[&command], &[expected]);
        }
    }

    #[test]
    fn an_iso_image_is_found() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), b"x").unwrap();
        let command = format!("makefs -t cd9660 IMAGE {}", folder.path().display());
        check_image(1, &[&command], &["ISO 9660"]);
    }

    #[test]
    fn swap_is_found_whatever_the_size_of_its_pages() {
        for page in ["4096", "8192", "16384", "32768", "65536"] {
            check_image(8, &[&format!("mkswap --pagesize {page} IMAGE")], &["Linux"]);
        }
    }

    #[test]
    fn an_mbr_is_found() {
        let (path, part) = image(8, &[]);
        drop(part);
        let mut sfdisk = Command::new("/usr/sbin/sfdisk")
            .arg("-q")
            .arg(&path)
            .stdin(std::process::Stdio::piped())
            .spawn();
        let child = sfdisk
            .as_mut()
            .expect("sfdisk does not run: run ci/setup, which installs it");
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"label: dos\n2048,4096,83\n")
            .unwrap();
        assert!(sfdisk.unwrap().wait().unwrap().success());
        let mut bytes = Ram::from_bytes(std::fs::read(&path).unwrap());
        assert_eq!(names(&mut bytes), ["MBR"]);
    }

    #[test]
    fn a_gpt_is_found_by_either_of_its_headers() {
        let (_path, mut part) = image(8, &["sgdisk --new=1:2048:8191 IMAGE"]);
        let all = probe(&mut part).unwrap();
        let places: Vec<(&str, u64)> = all
            .iter()
            .map(|found| (found.name, found.offset.0))
            .collect();
        let expected = [("GPT", 512), ("GPT (second header)", 8 * MIB - 512)];
        assert_eq!(places, expected);
        // What protects it is worth a word when it stands alone.
        part.zero(Offset(512), 33 * 512).unwrap();
        let expected = ["GPT (protective MBR)", "GPT (second header)"];
        assert_eq!(names(&mut part), expected);
        part.zero(Offset(0), 512).unwrap();
        assert_eq!(names(&mut part), ["GPT (second header)"]);
    }

    #[test]
    fn luks_is_found_by_either_of_its_headers() {
        let key = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(key.path(), b"key").unwrap();
        let format = |version: &str| {
            format!(
                "cryptsetup luksFormat -q --type {version} --pbkdf pbkdf2 --pbkdf-force-iterations 1000 IMAGE {}",
                key.path().display()
            )
        };
        check_image(32, &[&format("luks1")], &["LUKS"]);
        let (_path, mut part) = image(32, &[&format("luks2")]);
        assert_eq!(names(&mut part), ["LUKS", "LUKS2 (second header)"]);
        part.zero(Offset(0), 4096).unwrap();
        assert_eq!(names(&mut part), ["LUKS2 (second header)"]);
    }

    #[test]
    fn bcache_is_found() {
        check_image(8, &["make-bcache -B IMAGE"], &["bcache"]);
        check_image(80, &["make-bcache -C IMAGE"], &["bcache"]);
    }

    // By hand: programs that want a real device, a driver of the kernel, or another system.

    const SIZE: u64 = 2 * MIB + 512;

    fn hand_made(pieces: &[(u64, &[u8])]) -> Ram {
        let mut disk = Ram::new(SIZE);
        for (offset, bytes) in pieces {
            let start = to_usize(*offset);
            disk.bytes_mut()[start..start + bytes.len()].copy_from_slice(bytes);
        }
        disk
    }

    #[track_caller]
    fn check_hand_made(pieces: &[(u64, &[u8])], expected: &[(&str, u64)]) {
        let found = probe(&mut hand_made(pieces)).unwrap();
        let found: Vec<(&str, u64)> = found
            .iter()
            .map(|found| (found.name, found.offset.0))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn an_lvm2_label_is_found_in_each_of_the_first_four_sectors() {
        for sector in 0..4 {
            let place = sector * 512;
            check_hand_made(
                &[(place, b"LABELONE"), (place + 24, b"LVM2 001")],
                &[("LVM2", place)],
            );
        }
        check_hand_made(&[(512, b"LABELONE")], &[]);
        check_hand_made(&[(2048, b"LABELONE"), (2048 + 24, b"LVM2 001")], &[]);
    }

    #[test]
    fn an_md_member_of_every_version_is_found() {
        let version_1 = [MD_LITTLE, &[1, 0, 0, 0]].concat();
        let version_0 = [MD_LITTLE, &[0, 0, 0, 0]].concat();
        let version_0_big = [MD_BIG, &[0, 0, 0, 0]].concat();
        check_hand_made(&[(0, &version_1)], &[("md 1.1", 0)]);
        check_hand_made(&[(4096, &version_1)], &[("md 1.2", 4096)]);
        // 4097 sectors, less 16, down to a multiple of 8: 4080.
        check_hand_made(&[(4080 * 512, &version_1)], &[("md 1.0", 4080 * 512)]);
        check_hand_made(
            &[(2 * MIB - 65536, &version_0)],
            &[("md 0.90", 2 * MIB - 65536)],
        );
        check_hand_made(
            &[(2 * MIB - 65536, &version_0_big)],
            &[("md 0.90", 2 * MIB - 65536)],
        );
        check_hand_made(&[(0, &version_0)], &[]);
    }

    #[test]
    fn a_gjournal_label_is_found_in_the_last_sector_of_either_size() {
        for distance in [512, 4096] {
            check_hand_made(
                &[(SIZE - distance, b"GEOM::JOURNAL\0\0\0")],
                &[("gjournal", SIZE - distance)],
            );
            check_hand_made(
                &[(SIZE - distance, b"GEOM::MIRROR\0\0\0\0")],
                &[("GEOM", SIZE - distance)],
            );
        }
    }

    #[test]
    fn zfs_is_found_by_a_single_uberblock_in_any_label() {
        let uberblock = [0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0];
        for place in [128 * KIB, 511 * KIB, 1536 * KIB + 128 * KIB, 2 * MIB - 1024] {
            check_hand_made(&[(place, &uberblock)], &[("ZFS", place)]);
        }
        check_hand_made(
            &[(130 * KIB, &[0, 0, 0, 0, 0, 0xba, 0xb1, 0x0c])],
            &[("ZFS", 130 * KIB)],
        );
        check_hand_made(&[(127 * KIB, &uberblock)], &[]);
    }

    #[test]
    fn device_mapper_leaves_its_own_marks() {
        check_hand_made(
            &[(0, &[0x21, 0x93, 0x48, 0x23, 1, 0, 0, 0])],
            &[("dm-writecache", 0)],
        );
        check_hand_made(&[(0, &[0x21, 0x93, 0x48, 0x23, 9, 0, 0, 0])], &[]);
        check_hand_made(&[(0, b"integrt\0\x05")], &[("dm-integrity", 0)]);
    }

    #[test]
    fn an_hfs_plus_volume_is_found() {
        check_hand_made(&[(1024, b"H+\0\x04")], &[("HFS+", 1024)]);
        check_hand_made(&[(1024, b"HX\0\x05")], &[("HFS+", 1024)]);
        check_hand_made(&[(1024, b"H+\0\x09")], &[]);
        check_hand_made(
            &[(1024, b"BD"), (1024 + 20, &[0, 0, 0x10, 0])],
            &[("HFS", 1024)],
        );
        check_hand_made(&[(1024, b"BD"), (1024 + 20, &[0, 0, 0x10, 1])], &[]);
    }

    #[test]
    fn a_sun_label_is_found_if_its_sum_is_right() {
        check_hand_made(&[(508, &[0xda, 0xbe, 0xda, 0xbe])], &[("Sun", 508)]);
        check_hand_made(&[(508, &[0xda, 0xbe])], &[]);
    }

    /// Names, places and bytes as the formats' own descriptions and libblkid have them.
    #[test]
    fn what_other_programs_leave_is_found_at_its_place() {
        let minix = |at: u64, magic: &'static [u8]| -> Vec<(u64, &'static [u8])> {
            vec![(1024 + 4, &[1, 0, 1, 0, 1]), (1024 + at, magic)]
        };
        check_hand_made(&minix(16, &[0x7f, 0x13]), &[("Minix", 1040)]);
        check_hand_made(&minix(16, &[0x24, 0x78]), &[("Minix", 1040)]);
        check_hand_made(&minix(24, &[0x4d, 0x5a]), &[("Minix", 1048)]);
        check_hand_made(&[(1024 + 16, &[0x7f, 0x13])], &[]);

        let found: &[(&str, u64, &[u8])] = &[
            ("romfs", 0, b"-rom1fs-"),
            ("cramfs", 0, &[0x45, 0x3d, 0xcd, 0x28]),
            ("SquashFS", 0, b"hsqs"),
            ("SquashFS", 0, b"sqsh"),
            ("EROFS", 1024, &[0xe2, 0xe1, 0xf5, 0xe0]),
            ("zonefs", 0, b"SFOZ"),
            ("UBIFS", 0, &[0x31, 0x18, 0x10, 0x06]),
            ("UBI", 0, b"UBI#"),
            ("XFS", 0, b"XFSB"),
            ("btrfs", 0x10040, b"_BHRfS_M"),
            ("JFS", 0x8000, b"JFS1"),
            ("JFS (second superblock)", 0xf000, b"JFS1"),
            ("ReiserFS", 0x10034, b"ReIsErFs"),
            ("ReiserFS", 0x10034, b"ReIsEr2Fs"),
            ("ReiserFS", 0x2034, b"ReIsErFs"),
            ("ReiserFS", 0x2014, b"ReIsErFs"),
            ("Reiser4", 0x10000, b"ReIsEr4"),
            ("F2FS", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
            ("F2FS (second superblock)", 5120, &[0x10, 0x20, 0xf5, 0xf2]),
            ("GFS2", 0x10000, &[0x01, 0x16, 0x19, 0x70]),
            ("OCFS", 0x2000, b"OracleCFS"),
            ("OCFS2", 0x1000, b"OCFSV2"),
            ("Oracle ASM", 32, b"ORCLDISK"),
            ("exFAT", 3, b"EXFAT   "),
            ("NTFS", 3, b"NTFS    "),
            ("NTFS (second boot sector)", SIZE - 509, b"NTFS    "),
            ("ReFS", 3, b"ReFS\0\0\0\0"),
            ("ISO 9660", 0x8001, b"CD001"),
            ("High Sierra", 0x8009, b"CDROM"),
            ("UDF", 0x8001, b"BEA01"),
            ("UDF", 0x8001, b"NSR03"),
            ("APFS", 32, b"NXSB"),
            ("VMFS", 0x20_0000, &[0x5e, 0xf1, 0xab, 0x2f]),
            ("VMFS", 0x10_0000, &[0x0d, 0xd0, 0x01, 0xc0]),
            ("VxFS", 1024, &[0xf5, 0xfc, 0x01, 0xa5]),
            ("BFS", 0, &[0xce, 0xfa, 0xad, 0x1b]),
            ("BeFS", 0x220, b"1SFB"),
            ("System V", 512 + 504, &[0x20, 0x7e, 0x18, 0xfd]),
            ("System V", 15 * 1024 + 512 + 504, &[0xfd, 0x18, 0x7e, 0x20]),
            ("Xenix", 2048, &[0x2b, 0x55, 0x44]),
            ("NetWare", 4096, b"SPB5"),
            ("mpool", 0, b"mpoolDev"),
            ("hibernated Linux", 4086, b"ULSUSPEND"),
            ("SGI", 0, &[0x0b, 0xe5, 0xa9, 0x41]),
            ("AIX", 0, &[0xc9, 0xc2, 0xd4, 0xc1]),
            ("Intel firmware", SIZE - 1024, b"Intel Raid ISM Cfg Sig. "),
            ("DDF firmware", SIZE - 512, &[0xde, 0x11, 0xde, 0x11]),
            ("DDF firmware", SIZE - 257 * 512, &[0xde, 0x11, 0xde, 0x11]),
            ("LSI firmware", SIZE - 512, b"$XIDE$"),
            ("NVIDIA firmware", SIZE - 1024, b"NVIDIA"),
            ("Adaptec firmware", SIZE - 512, &[0x37, 0xfc, 0x4d, 0x1e]),
            ("HighPoint firmware", 4640, &[0xf0, 0x16, 0x78, 0x5a]),
            (
                "HighPoint firmware",
                SIZE - 11 * 512,
                &[0xf3, 0x16, 0x78, 0x5a],
            ),
            ("JMicron firmware", SIZE - 512, b"JM\0\x01"),
            (
                "Promise firmware",
                SIZE - 63 * 512,
                b"Promise Technology, Inc.",
            ),
            (
                "Promise firmware",
                SIZE - 3087 * 512,
                b"Promise Technology, Inc.",
            ),
            ("DRBD", 2 * MIB - 4096 + 60, &[0x83, 0x74, 0x02, 0x6b]),
            ("DRBD", 2 * MIB - 4096 + 60, &[0x83, 0x74, 0x02, 0x6d]),
            ("DRBD proxy", 0, b"DRBDdlh*"),
            ("LVM1", 0, b"HM\x01\0"),
            ("Stratis", 516, STRATIS),
            ("VDO", 0, b"dmvdo001"),
            ("Ceph BlueStore", 0, b"bluestore block device\n"),
            ("dm-integrity", 0, b"integrt\0"),
            ("dm-verity", 0, b"verity\0\0"),
            ("dm-snapshot", 0, b"SnAp"),
            ("BitLocker", 3, b"-FVE-FS-"),
            ("bcachefs", 4120, BCACHEFS),
            ("bcache", 4120, BCACHE),
        ];
        for (name, place, bytes) in found {
            check_hand_made(&[(*place, bytes)], &[(name, *place)]);
        }
        check_hand_made(&[(SIZE - 512, b"JM\0\x7f")], &[]);
        check_hand_made(&[(0, b"HM\x09\0")], &[]);
    }

    #[test]
    fn what_has_a_check_is_found_with_it_and_not_without() {
        let apple: [&[u8]; 2] = [b"PM\0\0\0\0\0\x01", b"PM\0\0\0\0\0\0"];
        for place in [512, 2048] {
            check_hand_made(&[(place, apple[0])], &[("Apple", place)]);
            check_hand_made(&[(place, apple[1])], &[]);
        }
        let nilfs2 = [2, 0, 0, 0, 0, 0, 0x34, 0x34];
        check_hand_made(&[(1024, &nilfs2)], &[("NILFS2", 1030)]);
        let second = SIZE - 8 * 512;
        let expected = [("NILFS2 (second superblock)", second + 6)];
        check_hand_made(&[(second, &nilfs2)], &expected);
        let hpfs: [&[u8]; 2] = [&[0x49, 0xe8, 0x95, 0xf9], &[0x49, 0x18, 0x91, 0xf9]];
        check_hand_made(&[(0x2000, hpfs[0]), (0x2200, hpfs[1])], &[("HPFS", 0x2000)]);
        check_hand_made(&[(0x2000, hpfs[0])], &[]);

        // Checksums: eight-bit over 50 bytes, and sixteen-bit words that sum up to nothing.
        let last = SIZE - 512;
        let via: &[(u64, &[u8])] = &[(last, &[0x55, 0xaa, 1]), (last + 50, &[0])];
        check_hand_made(via, &[("VIA firmware", last)]);
        check_hand_made(&[(last, &[0x55, 0xaa, 1]), (last + 50, &[1])], &[]);
        check_hand_made(&[(last, &[0x55, 0xaa, 3]), (last + 50, &[2])], &[]);
        let silicon = |sum: &'static [u8]| -> [(u64, &'static [u8]); 2] {
            [(last + 96, &[0, 0, 0, 0x2f]), (last + 0x13e, sum)]
        };
        let expected = [("Silicon Image firmware", last + 96)];
        check_hand_made(&silicon(&[0, 0xd1]), &expected);
        check_hand_made(&silicon(&[0, 0xd0]), &[]);
    }

    #[test]
    fn every_signature_is_found_where_it_stands() {
        // The checks are the business of the tests above; here each magic, its place and its name.
        for signature in SIGNATURES {
            let size = 65 * MIB + 512;
            let mut disk = Ram::new(size);
            let base = signature.base.resolve(size).unwrap();
            let start = to_usize(base) + signature.magic_at;
            disk.bytes_mut()[start..start + signature.magic.len()].copy_from_slice(signature.magic);
            let anything = Signature {
                check: |_| true,
                ..*signature
            };
            let found = anything.find(&mut Peek::at(&mut disk)).unwrap();
            let expected = Found {
                name: signature.name,
                class: signature.class,
                offset: Offset(to_u64(start)),
            };
            assert_eq!(found, Some(expected));
        }
    }

    // Nothing.

    #[test]
    fn an_empty_disk_carries_nothing() {
        assert_eq!(probe(&mut Ram::new(SIZE)).unwrap(), []);
    }

    #[test]
    fn two_bytes_by_chance_are_no_filesystem_and_no_partition_table() {
        check_hand_made(&[(1024 + 56, EXT), (1024 + 24, &[0xff])], &[]);
        check_hand_made(&[(510, BOOT)], &[]);
        check_hand_made(
            &[(510, BOOT), (446, &[0x7f]), (450, &[0x83]), (458, &[1])],
            &[],
        );
        check_hand_made(&[(510, BOOT), (450, &[0x83]), (458, &[1])], &[("MBR", 510)]);
        check_hand_made(&[(1024 + 6, &[0x34, 0x34])], &[]);
    }

    #[test]
    fn a_disk_of_any_size_and_any_contents_is_searched_to_its_last_sector() {
        for sectors in 0..=260 {
            for byte in [0x00, 0x01, 0x55, 0xff] {
                let mut disk = Ram::from_bytes(vec![byte; sectors * 512]);
                assert_eq!(
                    probe(&mut disk).unwrap(),
                    [],
                    "{sectors} sectors of {byte:#04x}"
                );
            }
        }
    }

    #[test]
    fn a_disk_with_large_blocks_is_read_in_whole_blocks() {
        // Memory asserts the alignment that the real disk would ask for.
        let mut disk = Ram::new(2 * MIB + 4096).with_block_size(4096);
        let end = disk.bytes().len();
        disk.bytes_mut()[end - 4096..end - 4096 + 8].copy_from_slice(b"EFI PART");
        assert_eq!(names(&mut disk), ["GPT (second header)"]);
    }

    #[test]
    fn what_was_found_is_told_with_its_place() {
        let found = probe(&mut hand_made(&[(0, b"XFSB")])).unwrap();
        assert_eq!(found[0].to_string(), "XFS filesystem (at byte 0)");
    }
}
