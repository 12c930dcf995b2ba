#!/bin/bash
# The ublk layer on a real kernel, with the pass-through server of examples/passthrough.rs:
#
#   what sysfs shows is what was asked for; a filesystem on the device verifies under load while the
#   server leaves and is killed, several times each, and another takes over; a stop under load ends.
#
# Called as root where ublk is, with a disk of at least 256 MiB that may be overwritten:
#
#   tests/lab/ublk.sh DISK          for instance: ci/lab --disk FILE -- tests/lab/ublk.sh /dev/ubda
#
# PASSTHROUGH names the server's binary; the default is the release build of the example.
#
# Exit codes: 0 all held, 1 something did not, 2 wrong usage.
set -euo pipefail

if [ $# -ne 1 ] || [ ! -b "$1" ]; then
    echo "usage: $0 DISK" >&2
    exit 2
fi
disk=$1
here=$(cd "$(dirname "$0")/../.." && pwd)
server=${PASSTHROUGH:-$here/target/release/examples/passthrough}
work=$(mktemp -d)
pid=
feed=

fail() {
    echo "FAILED: $*" >&2
    sed 's/^/  server: /' "$work"/err* >&2 || true
    exit 1
}

# Starts the server with the arguments and waits until it has printed the device's path.
begin() {
    rm -f "$work/in"
    mkfifo "$work/in"
    "$server" "$@" <"$work/in" >"$work/out" 2>>"$work/err" &
    pid=$!
    exec {feed}>"$work/in"
    for _ in $(seq 400); do
        if grep -q '^/dev/ublkb' "$work/out"; then
            device=$(head -n 1 "$work/out")
            return
        fi
        kill -0 "$pid" 2>/dev/null || fail "the server ended at once: $*"
        sleep 0.05
    done
    fail "the server did not begin: $*"
}

tell() {
    echo "$1" >&"$feed"
}

# Waits for the server's end and checks its exit code.
ended() {
    local expected=$1 code=0
    exec {feed}>&-
    # Bash would print a line about a process that was killed.
    wait "$pid" 2>/dev/null || code=$?
    [ "$code" -eq "$expected" ] || fail "the server ended with $code, expected $expected"
}

attribute() {
    local found
    found=$(cat "/sys/block/${device#/dev/}/queue/$1")
    [ "$found" = "$2" ] || fail "$1 is '$found', expected '$2'"
}

# 0. Errors say what to do. The last one takes 30 s and is looked at in the end: a device that is served
# is not taken over.
io_uring=$(sysctl -n kernel.io_uring_disabled)
sysctl -q kernel.io_uring_disabled=2
code=0
"$server" list 2>"$work/error" || code=$?
sysctl -q kernel.io_uring_disabled="$io_uring"
[ "$code" -eq 1 ] || fail "list without io_uring ended with $code"
grep -q 'sysctl kernel.io_uring_disabled' "$work/error" || fail "no remedy in: $(cat "$work/error")"
if "$server" recover 77 "$disk" 2>"$work/error"; then fail "a device that is not there was taken over"; fi
grep -q 'there is no ublk device 77' "$work/error" || fail "not said that it is missing: $(cat "$work/error")"
begin null 1073741824
held=$pid
held_feed=$feed
held_device=$device
"$server" recover "${device#/dev/ublkb}" "$disk" 2>"$work/error" &
intruder=$!
echo "errors say what to do"

# 1. What sysfs shows.
begin serve "$disk" 262144
grep -qF '[none]' "/sys/block/${device#/dev/}/queue/scheduler" || fail "the scheduler is not none"
attribute max_sectors_kb 256
attribute read_ahead_kb 128
attribute write_cache 'write back'
attribute fua 1
attribute rotational 0
attribute logical_block_size 512
attribute physical_block_size 4096
attribute minimum_io_size 4096
attribute optimal_io_size 65536
attribute discard_max_bytes 1073741824
attribute write_zeroes_max_bytes 1073741824
"$server" list | grep -q "^$device Live pid $pid " || fail "list does not show $device"
thread=$(grep -l "^ublk-queue-" /proc/"$pid"/task/*/comm)
mask=$(awk '/^SigBlk/ { print $2 }' "${thread%comm}status")
[ "$mask" = fffffffe7ffbfeff ] || fail "the queue thread's signal mask is $mask"
# PF_MEMALLOC_NOIO and PF_LOCAL_THROTTLE: what PR_SET_IO_FLUSHER sets.
flags=$(awk '{ print $9 }' "${thread%comm}stat")
[ $((flags & 0x180000)) -eq $((0x180000)) ] || fail "the queue thread may wait for write-back: flags $flags"
[ "$(awk '/^VmLck/ { print $2 }' "/proc/$pid/status")" -ge 32768 ] || fail "the buffers are not locked"
echo "sysfs shows what was asked for; the queue thread is set up for the path of a write"

# 2. Servers come and go under a mounted filesystem.
mkfs.ext4 -q "$device"
mkdir -p "$work/mnt"
mount "$device" "$work/mnt"
fio --name=load --directory="$work/mnt" --size=96M --rw=randwrite --bsrange=4k-128k --ioengine=libaio \
    --iodepth=16 --direct=1 --fsync=32 --rate=8m --verify=crc32c --verify_state_save=0 \
    --output="$work/fio" &
load=$!
number=${device#/dev/ublkb}
for round in 1 2 3; do
    sleep 0.7
    tell leave
    ended 0
    grep -q "^left $device" "$work/out" || fail "the server did not say that it left"
    sleep 0.3
    "$server" list | grep -q "^$device Quiesced" || fail "$device is not quiesced after leaving"
    begin recover "$number" "$disk"
    sleep 0.7
    kill -KILL "$pid"
    ended 137
    begin recover "$number" "$disk"
    echo "round $round: left and taken over, killed and taken over"
done
kill -0 "$load" || fail "the load ended before the takeovers did"
wait "$load" || { cat "$work/fio" >&2; fail "fio found wrong data"; }
umount "$work/mnt"
fsck.ext4 -fn "$device" >"$work/fsck" 2>&1 || { cat "$work/fsck" >&2; fail "fsck"; }
echo "all data verified, filesystem clean"

# 3. Discards and zeroes.
dd if=/dev/urandom of="$device" bs=1M count=4 oflag=direct status=none
blkdiscard -z -o 1M -l 1M "$device"
cmp -n 1048576 -i 1048576:0 "$device" /dev/zero || fail "zeroed range is not zero"
echo "zeroed range reads as zeroes"

# 4. A stop under load.
fio --name=stopped --filename="$device" --rw=randwrite --bs=4k --ioengine=libaio --iodepth=32 --direct=1 \
    --time_based --runtime=60 --output="$work/fio" >/dev/null 2>&1 &
load=$!
sleep 1
tell stop
ended 0
if wait "$load"; then
    fail "fio did not notice that its device is gone"
fi
[ ! -e "$device" ] || fail "$device is still there"
[ "$("$server" list | wc -l)" -eq 1 ] || fail "a device stayed behind"
echo "stopped under load, nothing left behind"

# 5. The device that was served all the time.
if wait "$intruder"; then fail "$held_device was taken from its server"; fi
grep -q "$held_device is still held by process $held" "$work/error" ||
    fail "not said who holds $held_device: $(cat "$work/error")"
pid=$held
feed=$held_feed
tell stop
ended 0
[ -z "$("$server" list)" ] || fail "a device stayed behind"
echo "a device that is served was not taken over"
