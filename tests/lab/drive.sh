#!/bin/bash
# The emulated disk and its power cuts. Three things are shown:
#
#   look   sysfs shows what was asked for, fio finds what it wrote, and an orderly stop keeps everything;
#   cut    after a cut, flushed and FUA data is whole, and of the rest some sectors are lost and some not;
#   off    without FUA the kernel sends a FLUSH instead, which covers all that was written before.
#
# Called anywhere:
#
#   tests/lab/drive.sh [SEED]       the seed decides what is destaged when; the default is a random one
#
# It starts the lab itself, several times. LAB names the command for that; the default is ci/lab of this
# checkout. DRIVE names the drive's binary; the default is the release build with the feature `drive`.
#
# Exit codes: 0 all held, 1 something did not, 2 wrong usage.
set -euo pipefail

here=$(cd "$(dirname "$0")/../.." && pwd)
lab=${LAB:-$here/ci/lab}
drive=${DRIVE:-$here/target/release/drive}

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# Prints COUNT sectors that say VERSION.
sectors() {
    local version=$1 count=$2
    yes "$(printf '%-511s' "$version")" | head -c $((count * 512)) || true
}

# Counts the sectors of each version from sector START on: "COUNT VERSION" lines.
versions() {
    local file=$1 start=$2 count=$3
    dd if="$file" bs=512 skip="$start" count="$count" status=none | cut -c1-2 | sort | uniq -c
}

# How many of these sectors say VERSION.
count() {
    versions "$1" "$2" "$3" | awk -v version="$4" '$2 == version { n = $1 } END { print n + 0 }'
}

# What runs inside the lab.

attribute() {
    local found
    found=$(cat "/sys/block/${device#/dev/}/queue/$1")
    [ "$found" = "$2" ] || fail "$1 is '$found', expected '$2'"
}

serve() {
    device=$("$drive" serve --log /mnt/lab/log "$@") || { cat /mnt/lab/log >&2; fail "no drive"; }
}

load() {
    fio --name=load --filename="$device" --size=96M --ioengine=libaio --iodepth=32 --direct=1 \
        --verify=crc32c --verify_state_save=0 --output=/tmp/fio "$@" || { cat /tmp/fio >&2; fail "fio"; }
}

inside_look() {
    serve --file /dev/ubda --size 128MiB --fua off --max-sectors-kb 128 --rotational --discard
    attribute write_cache 'write back'
    attribute fua 0
    attribute max_sectors_kb 128
    attribute rotational 1
    attribute logical_block_size 512
    attribute physical_block_size 4096
    attribute discard_max_bytes 8388608
    load --rw=randwrite --bsrange=512-64k --blockalign=512 --fsync=64
    "$drive" stop "$device"

    serve --file /dev/ubda --size 128MiB --block-size 4096 --cache 8MiB
    attribute fua 1
    attribute max_sectors_kb 512
    attribute rotational 0
    attribute logical_block_size 4096
    attribute discard_max_bytes 0
    load --rw=randwrite --bsrange=4k-256k --sync=1 --time_based --runtime=3 --verify_backlog=256
    load --rw=randwrite --bsrange=4k-256k
    "$drive" stop "$device"
    serve --file /dev/ubda --size 128MiB --block-size 4096
    load --rw=randwrite --bsrange=4k-256k --verify_only
    "$drive" stop "$device"

    # Several in one process, each with its own part; slow answers.
    local devices
    devices=$("$drive" serve --log /mnt/lab/log --file /dev/ubda --count 3 --size 32MiB --write-delay 20)
    [ "$(wc -l <<<"$devices")" -eq 3 ] || fail "three drives expected, got: $devices"
    local n=1 start=${EPOCHREALTIME/./} took
    for device in $devices; do
        sectors v$n 65536 | dd of="$device" bs=1M iflag=fullblock oflag=direct status=none
        n=$((n + 1))
    done
    took=$((${EPOCHREALTIME/./} - start))
    [ "$took" -ge 1900000 ] || fail "96 writes of 20 ms took $took us"
    # shellcheck disable=SC2086
    "$drive" stop $devices
    for n in 1 2 3; do
        [ "$(count /dev/ubda $(((n - 1) * 65536)) 65536 v$n)" -eq 65536 ] || fail "part $n is not whole"
    done
    [ -z "$("$drive" list)" ] || fail "a drive stayed behind"
}

# Sectors: A 0 to 16383, B 16384 to 24575, C 32768 to 65535.
inside_cut() {
    local fua=$1 seed=$2
    serve --file /dev/ubda --fua "$fua" --destage-rate 5 --destage-seed "$seed" --status /mnt/lab/status
    write() {
        local version=$1 start=$2 count=$3
        sectors "$version" "$count" | dd of="$device" bs=64k iflag=fullblock seek=$((start * 512)) \
            status=none oflag=direct,seek_bytes
    }
    write v0 0 65536
    write v1 0 16384
    blockdev --flushbufs "$device"
    sync -d "$device"
    write v2 0 16384
    write v1 32768 32768
    # FUA alone: an asynchronous O_DSYNC write. A synchronous one, dd's, has the kernel send a FLUSH as well.
    sectors v1 1 >/tmp/pattern
    fio --name=fua --filename="$device" --offset=$((16384 * 512)) --size=$((8192 * 512)) --rw=randwrite --bs=4k \
        --ioengine=libaio --iodepth=8 --direct=1 --sync=dsync --buffer_pattern="'/tmp/pattern'" \
        --output=/tmp/fio || { cat /tmp/fio >&2; fail "fio"; }
    # Until some of it is destaged. Without FUA all of it is already.
    while [ "$(awk 'NR == 1 { print $4 + 0 }' /mnt/lab/status)" -gt 36000 ]; do
        sleep 0.02
    done
    echo cut >/mnt/lab/cut
    sleep 60
}

if [ "${1:-}" = inside ]; then
    "inside_$2" "${@:3}"
    exit
fi

# What runs outside.

if [ $# -gt 1 ] || [[ ! ${1:-0} =~ ^[0-9]+$ ]]; then
    echo "usage: $0 [SEED]" >&2
    exit 2
fi
seed=${1:-$((RANDOM * 32768 + RANDOM))}
echo "seed $seed"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
disk=$work/disk
truncate -s 128M "$disk"

in_lab() {
    local expected=$1 code=0
    shift
    rm -rf "$work/out"
    mkdir "$work/out"
    DRIVE=$drive "$lab" --disk "$disk" --out "$work/out" --timeout 300 "$@" || code=$?
    if [ "$code" -ne "$expected" ]; then
        cat "$work/out/log" >&2 || true
        fail "the lab ended with $code, expected $expected"
    fi
}

in_lab 0 -- "$here/tests/lab/drive.sh" inside look
echo "look: sysfs shows what was asked for, all data verified, an orderly stop keeps everything"

cut_off() {
    in_lab 137 --kill-file cut -- "$here/tests/lab/drive.sh" inside cut "$1" "$seed"
    volatile=$(awk 'NR == 1 { print $4 + 0 }' "$work/out/status")
    a1=$(count "$disk" 0 16384 v1)
    a2=$(count "$disk" 0 16384 v2)
    b1=$(count "$disk" 16384 8192 v1)
    c0=$(count "$disk" 32768 32768 v0)
    c1=$(count "$disk" 32768 32768 v1)
    [ $((a1 + a2)) -eq 16384 ] || fail "flushed data is lost: $(versions "$disk" 0 16384)"
    [ "$b1" -eq 8192 ] || fail "FUA data is lost: $(versions "$disk" 16384 8192)"
    [ $((c0 + c1)) -eq 32768 ] || fail "the rest is neither old nor new: $(versions "$disk" 32768 32768)"
}

cut_off on
lost=$((a1 + c0))
torn=$(dd if="$disk" bs=512 skip=32768 count=32768 status=none | cut -c1-2 | paste -d ' ' - - - - - - - - |
    grep v0 | grep -c v1 || true)
echo "cut: flushed and FUA data whole; of 49152 unflushed sectors $lost lost, $((a2 + c1)) stored"
echo "     $torn blocks of 4 KiB torn; $volatile sectors were volatile at the last look"
if [ "$a1" -eq 0 ] || [ "$c0" -eq 0 ]; then
    fail "nothing unflushed is lost: the cut hurts nobody"
fi
if [ "$a2" -eq 0 ] || [ "$c1" -eq 0 ]; then
    fail "nothing unflushed is stored"
fi
[ "$torn" -gt 0 ] || fail "no block is torn"
[ "$lost" -le "$volatile" ] || fail "more was lost than was volatile"

cut_off off
[ "$a2" -eq 16384 ] || fail "the FLUSH in place of FUA did not cover A"
[ "$c1" -eq 32768 ] || fail "the FLUSH in place of FUA did not cover C"
echo "off: the FLUSH in place of FUA covered everything before it"
