#!/usr/bin/env bash
# Puts a filesystem on a block device, fills it with a tree of files, and checks that it is sound
# and that every byte is there. Destroys what the device held. Runs as root, on a machine or in the
# lab.
#
#   filesystem.sh DEVICE FSTYPE fill|verify [FILES [SEED]]
#
#   FSTYPE  ext4, ext2, xfs, btrfs, vfat or ufs
#   fill    mkfs, mount, make the tree, unmount, check, mount, compare the tree, unmount
#   verify  check, mount, compare the tree that `fill` made, unmount
#   FILES   default 20000, some 200 MB: the device needs 700 MiB then
#   SEED    default 1
#
# "check" is the filesystem's own checker in its mode that repairs nothing. UFS has none on Linux;
# there the comparison must do, and the script says so.
# Exit codes: 0 all as it should be; 1 something failed, the last line before it says what was
# being done; 2 wrong usage.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
say() { printf 'filesystem.sh: %s\n' "$*" >&2; }

main() {
    if (($# < 3 || $# > 5)); then
        say "expected DEVICE FSTYPE fill|verify [FILES [SEED]], found $# arguments"
        exit 2
    fi
    device="$1" fstype="$2" phase="$3" files="${4:-20000}" seed="${5:-1}"
    case "$fstype" in ext4 | ext2 | xfs | btrfs | vfat | ufs) ;; *)
        say "expected a filesystem of ext4, ext2, xfs, btrfs, vfat, ufs, found '$fstype'"
        exit 2
        ;;
    esac
    case "$phase" in fill | verify) ;; *)
        say "expected the phase fill or verify, found '$phase'"
        exit 2
        ;;
    esac
    if [[ ! -b $device ]]; then
        say "'$device' is not a block device"
        exit 2
    fi

    scratch="$(mktemp -d)"
    mounted=no
    trap clean_up EXIT
    mkdir "$scratch/mnt"

    if [[ $phase == fill ]]; then
        step make_filesystem
        step mount_filesystem
        step tree make
        step unmount_filesystem
    fi
    step check_filesystem
    step mount_filesystem
    step tree verify
    step unmount_filesystem
}

# Each step is named with its time, so that a failure's place and a slow spot can be seen.
step() {
    local begin="${EPOCHREALTIME/[.,]/}" end
    "$@"
    end="${EPOCHREALTIME/[.,]/}"
    say "$(printf '%-6s %-22s %6d ms' "$fstype" "$*" $(((end - begin) / 1000)))"
}

clean_up() {
    local status=$?
    if [[ $mounted == yes ]]; then umount "$scratch/mnt" || true; fi
    rm -rf --one-file-system "$scratch"
    if ((status != 0)); then
        say "$fstype on $device: FAILED"
        # Whatever the failed program's own status was.
        exit 1
    fi
}

make_filesystem() {
    case "$fstype" in
        ext4 | ext2) mkfs."$fstype" -q -F "$device" ;;
        xfs) mkfs.xfs -q -f "$device" ;;
        btrfs) quietly mkfs.btrfs -q -f "$device" ;;
        vfat) mkfs.vfat -F 32 "$device" >/dev/null ;;
        ufs) make_ufs ;;
    esac
}

# Linux has no mkfs for UFS. makefs makes an image in a file; all of it goes onto the device, zeros
# too, because where the image holds zeros the device may hold something older. It is UFS1: makefs
# puts the superblock of UFS2 where Linux does not look for it.
make_ufs() {
    local image="$scratch/ufs.image" bytes size_max=$((640 << 20))
    bytes="$(blockdev --getsize64 "$device")"
    if ((bytes > size_max)); then bytes=$size_max; fi
    mkdir "$scratch/empty"
    # Left alone, it makes inodes for what is in the image now, and no more.
    quietly makefs -t ffs -s "$bytes" -f $((files * 2)) -o version=1,bsize=16384,fsize=2048 "$image" "$scratch/empty"
    dd if="$image" of="$device" bs=1M oflag=direct conv=fsync status=none
    rm "$image"
}

mount_filesystem() {
    local options=()
    case "$fstype" in
        # Names are UTF-8. A name's case is kept, but does not tell two files apart.
        vfat) options=(-o iocharset=utf8) ;;
        ufs) options=(-o ufstype=44bsd) ;;
    esac
    mount -t "$fstype" "${options[@]}" "$device" "$scratch/mnt" || {
        dmesg | tail -n 5 >&2
        return 1
    }
    mounted=yes
}

unmount_filesystem() {
    umount "$scratch/mnt"
    mounted=no
}

tree() {
    local kind=()
    if [[ $fstype != vfat ]]; then kind=(--posix); fi
    "$here/tree.py" "$1" "$scratch/mnt/tree" --files "$files" --seed "$seed" "${kind[@]}"
}

check_filesystem() {
    case "$fstype" in
        ext4 | ext2) quietly e2fsck -f -n "$device" ;;
        xfs) quietly xfs_repair -n "$device" ;;
        btrfs) quietly btrfs check --readonly --check-data-csum "$device" ;;
        vfat) quietly fsck.vfat -n "$device" ;;
        ufs) say "ufs has no checker on Linux: the comparison alone must do" ;;
    esac
}

# The output of a checker or a mkfs matters only when it failed.
quietly() {
    local status
    "$@" >"$scratch/output" 2>&1 || {
        status=$?
        cat "$scratch/output"
        say "$1 ended with $status"
        return 1
    }
}

main "$@"
