#!/usr/bin/env bash
# Shows that the loads of this folder pass on a sound disk and fail on one that is not.
#
#   selftest.sh DEVICE
#
# DEVICE is a block device of at least 100 MiB, whose content is lost; run it in the lab:
#
#   truncate -s 128M disk; ci/lab --disk disk -- tests/fs/selftest.sh /dev/ubda
#
# Method: device-mapper's "flakey" target stands between the load and the device and changes one
# byte of what is written, drops writes, or fails them. A load that passes there would pass over our
# own mistakes too.
# Exit codes: 0 each load told sound from unsound; 1 one did not, it is named; 2 wrong usage.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
die() {
    printf 'selftest.sh: %s\n' "$*" >&2
    exit 1
}

if (($# != 1)) || [[ ! -b $1 ]]; then
    printf 'selftest.sh: expected one block device, found "%s"\n' "$*" >&2
    exit 2
fi
device="$1"
scratch="$(mktemp -d)"
trap clean_up EXIT
clean_up() {
    if mountpoint -q "$scratch/mnt"; then umount "$scratch/mnt"; fi
    remove_unsound
    rm -rf "$scratch"
}

# expect_status EXPECTED WHAT COMMAND...
expect_status() {
    local expected="$1" what="$2" status=0
    shift 2
    "$@" >"$scratch/output" 2>&1 || status=$?
    if ((status != expected)); then
        cat "$scratch/output"
        die "$what: expected status $expected, found $status"
    fi
    echo "$what: status $status, as it should be"
}

tree() {
    "$here/tree.py" "$1" "$scratch/tree" --files 300 --seed 11 --posix
}

# Each change to a tree is one difference, and taking it back leaves none.
check_tree() {
    local file
    expect_status 0 "tree made" tree make
    expect_status 1 "tree made over another" tree make
    expect_status 0 "tree unchanged" tree verify
    expect_status 1 "tree of another seed" "$here/tree.py" verify "$scratch/tree" --files 300 --seed 12 --posix
    file="$(find "$scratch/tree" -type f -links 1 -size +4k -print -quit)"

    cp -p "$file" "$scratch/kept"
    printf '\x55' | dd of="$file" bs=1 seek=2000 conv=notrunc status=none
    cmp -s "$file" "$scratch/kept" && printf '\x56' | dd of="$file" bs=1 seek=2000 conv=notrunc status=none
    expect_status 1 "tree with one byte changed" tree verify
    truncate -s -1 "$file"
    expect_status 1 "tree with a file cut short" tree verify
    rm "$file"
    expect_status 1 "tree with a file missing" tree verify
    cp -p "$scratch/kept" "$file"
    expect_status 0 "tree as it was" tree verify
    touch "$scratch/tree/one too many"
    expect_status 1 "tree with a file too many" tree verify
    rm "$scratch/tree/one too many"
    chmod 0111 "$file"
    expect_status 1 "tree with permission bits changed" tree verify
}

remove_unsound() {
    if dmsetup info unsound >/dev/null 2>&1; then dmsetup remove --noudevsync --noudevrules unsound; fi
}

# unsound FEATURE...: makes /dev/mapper/unsound, the device with that fault at all times.
unsound() {
    remove_unsound
    dmsetup create --noudevsync --noudevrules unsound \
        --table "0 $(blockdev --getsz "$device") flakey $device 0 0 3600 $# $*"
    dmsetup mknodes
}

check_block_loads() {
    local block_ops=("$here/block_ops.py" /dev/mapper/unsound 0 16777216 --seconds 1 --seed 3)
    local fio_verify=("$here/fio-verify.sh" /dev/mapper/unsound 0 3)

    expect_status 0 "block_ops.py on a sound disk" "$here/block_ops.py" "$device" 0 16777216 --seconds 1 --seed 3
    expect_status 0 "fio-verify.sh on a sound disk" "$here/fio-verify.sh" "$device" 0 3
    unsound corrupt_bio_byte 100 w 7 0
    expect_status 1 "block_ops.py where a byte is changed" "${block_ops[@]}"
    expect_status 1 "fio-verify.sh where a byte is changed" "${fio_verify[@]}"
    # It was fio that found it, not only the job beside it.
    grep -q -E '^(verify|crc32c): ' "$scratch/output" || die "fio-verify.sh: fio itself compared nothing"
    unsound drop_writes
    expect_status 1 "block_ops.py where writes are dropped" "${block_ops[@]}"
    expect_status 1 "fio-verify.sh where writes are dropped" "${fio_verify[@]}"
    unsound error_writes
    expect_status 1 "block_ops.py where writes fail" "${block_ops[@]}"
    expect_status 1 "fio-verify.sh where writes fail" "${fio_verify[@]}"
    unsound error_reads
    expect_status 1 "block_ops.py where reads fail" "${block_ops[@]}"
    expect_status 1 "fio-verify.sh where reads fail" "${fio_verify[@]}"
    remove_unsound
}

check_filesystems() {
    local filesystem=("$here/filesystem.sh" "$device" ext2)
    expect_status 0 "filesystem.sh fill" "${filesystem[@]}" fill 500 5
    expect_status 0 "filesystem.sh verify" "${filesystem[@]}" verify 500 5
    expect_status 1 "filesystem.sh of another seed" "${filesystem[@]}" verify 500 6

    # One byte of a file's data, behind the filesystem's back.
    local block byte
    mkdir "$scratch/mnt"
    mount -o ro "$device" "$scratch/mnt"
    block="$(filefrag -v -b4096 "$(find "$scratch/mnt/tree" -type f -size +64k -print -quit)" |
        awk '$1 == "0:" { sub(/\.\./, "", $4); print $4 }')"
    umount "$scratch/mnt"
    byte="$(dd if="$device" bs=4096 skip="$block" count=1 iflag=direct status=none | head -c 1 | od -A n -t u1)"
    # shellcheck disable=SC2059  # the byte is the format
    printf "\\x$(printf '%02x' $((byte ^ 1)))" |
        dd of="$device" bs=1 seek=$((block * 4096)) conv=notrunc,fsync status=none
    expect_status 1 "filesystem.sh with one byte of data changed" "${filesystem[@]}" verify 500 5

    # Its metadata: the block bitmaps and inode tables of the first group.
    expect_status 0 "filesystem.sh fill again" "${filesystem[@]}" fill 500 5
    dd if=/dev/zero of="$device" bs=4096 seek=2 count=40 conv=notrunc,fsync status=none
    expect_status 1 "filesystem.sh with metadata wiped" "${filesystem[@]}" verify 500 5
}

check_bench() {
    expect_status 0 "filesystem for bench.sh" mkfs.ext4 -q -F "$device"
    mount "$device" "$scratch/mnt"
    expect_status 0 "bench.sh" "$here/bench.sh" "$scratch/mnt" 32 500
    local lines
    lines="$(grep -c -x -E '(bonnie|postmark)_[a-z_]+ ([0-9]+(\.[0-9]+)?|unmeasured)' "$scratch/output" || true)"
    [[ $lines == 10 ]] || die "bench.sh: expected 10 figures, found $lines"
    expect_status 1 "bench.sh with no room" "$here/bench.sh" "$scratch/mnt" 1000 500
    [[ -z $(find "$scratch/mnt" -name 'bench.*') ]] || die "bench.sh left something behind"
    umount "$scratch/mnt"
}

check_tree
check_block_loads
check_filesystems
check_bench
echo "the loads tell sound from unsound"
