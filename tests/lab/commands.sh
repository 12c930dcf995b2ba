#!/bin/bash
# The commands on a real kernel: one array from its label to its end, with everything that may stand in
# the way of a stop or a start.
#
# Called as root where ublk is, with three disks of at least 128 MiB that may be overwritten:
#
#   tests/lab/commands.sh DISK DISK DISK
#   for instance: ci/lab --disk A --disk B --disk C -- tests/lab/commands.sh /dev/ubda /dev/ubdb /dev/ubdc
#
# UJOURNAL names the program; the default is the release build.
#
# Exit codes: 0 all held, 1 something did not, 2 wrong usage.
set -euo pipefail

if [ $# -ne 3 ] || [ ! -b "$1" ] || [ ! -b "$2" ] || [ ! -b "$3" ]; then
    echo "usage: $0 DISK DISK DISK" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")/../.." && pwd)
ujournal=${UJOURNAL:-$here/target/release/ujournal}
work=$(mktemp -d)
name=commands
config=$work/$name.toml
mnt=$work/mnt
mkdir "$mnt"
cat >"$config" <<END
name = "$name"
data.members = ["$1", "$2"]
journal.device = "$3"
memory.window = "32MiB"
memory.extents = "64Ki"
END

fail() {
    echo "FAILED: $*" >&2
    for log in /run/ujournal/$name.log.old /run/ujournal/$name.log; do
        sed 's/^/  log: /' "$log" >&2 || true
    done
    exit 1
}

# Runs the program and checks its exit code; what it said is in $out and $err.
expect() {
    local expected=$1 code=0
    shift
    "$ujournal" "$@" >"$work/out" 2>"$work/err" || code=$?
    out=$(<"$work/out")
    err=$(<"$work/err")
    [ "$code" -eq "$expected" ] || fail "ujournal $*: exit code $code, expected $expected: $out $err"
    # What `check` and `status` find is their result, whatever the exit code.
    if [ "$expected" -ne 0 ] && [ "$1" != check ] && [ ! -s "$work/out" ]; then
        [ "$(wc -l <"$work/err")" -eq 1 ] || fail "ujournal $*: not one sentence: $err"
    fi
}

says() {
    [[ "$out$err" == *"$1"* ]] || fail "expected '$1', found: $out $err"
}

daemon() {
    head -n 1 "/run/ujournal/$name.lock"
}

gone() {
    for _ in $(seq 600); do
        [ -d "/proc/$1" ] || return 0
        sleep 0.05
    done
    fail "process $1 does not end"
}

nothing_left() {
    local path
    for path in /dev/ublkb0 /dev/ujournal/$name /run/ujournal/$name.sock /run/ujournal/$name.device; do
        if [ -e "$path" ] || [ -L "$path" ]; then
            fail "$path is left"
        fi
    done
}

step() {
    echo "commands: $*"
}

step 'label, start: the device answers, and what belongs to root belongs to root alone'
expect 0 label --force "$config"
expect 0 start "$config"
[ "$out" = "/dev/ublkb0
/dev/ujournal/$name" ] || fail "start printed: $out"
[ "$(readlink /dev/ujournal/$name)" = /dev/ublkb0 ] || fail 'the link'
[ "$(stat -c '%a %u' /run/ujournal/$name.sock)" = '600 0' ] || fail 'the mode of the socket'
[ "$(stat -c '%a %u' /run/ujournal)" = '755 0' ] || fail 'the mode of the folder'
grep -q 'start {"array":"commands","epoch":1,"kind":"clean"' /run/ujournal/$name.log || fail 'no line about the start'
expect 0 status $name --json
says '"state": "DIRTY"'
expect 0 list
says "$name"

step 'while it runs: every command that wants its disks is refused, and names the daemon'
expect 3 start "$config"
says "is running already (pid $(daemon))"
for command in 'label --force' clear check; do
    # shellcheck disable=SC2086 # a command with its option
    expect 3 $command "$config"
    says "is running (pid $(daemon)) and holds $1; stop it first: ujournal stop $name"
done

step 'stop is refused while the device is mounted, open, or under a loop device'
mkfs.ext4 -q /dev/ujournal/$name
mount /dev/ujournal/$name "$mnt"
expect 3 stop $name
says "in use: mounted on $mnt; unmount or close it first, or stop --force (its users get errors)"
umount "$mnt"
tail -f /dev/null 3</dev/ublkb0 &
opener=$!
expect 3 stop $name
says "in use: open by tail (pid $opener)"
kill "$opener"
wait "$opener" 2>/dev/null || true
loop=$(losetup --find --show /dev/ublkb0)
expect 3 stop $name
says "in use: used by ${loop#/dev/}"
losetup --detach "$loop"

step 'a partition of it that is mounted counts as well'
echo 'start=2048, size=65536' | sfdisk --quiet --wipe always /dev/ublkb0
for _ in $(seq 100); do
    [ -b /dev/ublkb0p1 ] && break
    sleep 0.05
done
mkfs.ext4 -q /dev/ublkb0p1
mount /dev/ublkb0p1 "$mnt"
expect 3 stop $name
says "in use: mounted on $mnt"
umount "$mnt"
mkfs.ext4 -q -F /dev/ujournal/$name
mount /dev/ujournal/$name "$mnt"
dd if=/dev/urandom of="$mnt/before" bs=1M count=20 conv=fsync status=none
umount "$mnt"

step 'sync; stop: all is home, and nothing is left'
expect 0 sync $name
expect 0 stop $name
says 'stopped, clean'
nothing_left
expect 1 status $name
says "no array $name is running; ujournal list shows those that are"
expect 0 check "$config"
says 'would start'

step 'SIGTERM stops what nobody uses'
expect 0 start "$config"
pid=$(daemon)
kill -TERM "$pid"
gone "$pid"
[ ! -e /dev/ublkb0 ] || fail 'the device is left'
expect 0 check "$config"
says 'it was stopped cleanly'

step 'SIGTERM leaves what is mounted; the next start takes it over, and it can be unmounted then'
expect 0 start "$config"
mount /dev/ujournal/$name "$mnt"
sum=$(sha256sum <"$mnt/before")
pid=$(daemon)
kill -TERM "$pid"
gone "$pid"
if [ ! -b /dev/ublkb0 ] || [ ! -L /dev/ujournal/$name ]; then
    fail 'the device is not left'
fi
expect 1 stop $name
says "its device /dev/ublkb0 is still there (mounted on $mnt), waiting for a daemon"
expect 0 list
says "$name  WAITING  /dev/ublkb0  no daemon; ujournal start CONFIG goes on"
expect 1 status $name
says "$name: WAITING"
expect 3 label --force "$config"
says "start $config takes it over, stop --force $name gives it up"
expect 0 start "$config"
grep -q '"kind":"takeover"' /run/ujournal/$name.log || fail 'no takeover'
echo 3 >/proc/sys/vm/drop_caches
[ "$(sha256sum <"$mnt/before")" = "$sum" ] || fail 'the file has changed'
! grep -q ublkb "/proc/$(daemon)/mountinfo" || fail 'the daemon keeps the filesystem on its own device mounted'
umount "$mnt"

step 'SIGKILL under load: the socket is stale, start takes over, the load goes on'
mount /dev/ujournal/$name "$mnt"
dd if=/dev/zero of="$mnt/during" bs=4k count=5000 oflag=direct status=none &
load=$!
sleep 0.3
kill -KILL "$(daemon)"
expect 1 status $name
says "$name: WAITING"
says 'its daemon died; ujournal start CONFIG goes on'
expect 0 start "$config"
wait "$load" || fail 'the load saw an error'
[ "$(stat -c %s "$mnt/during")" -eq 20480000 ] || fail 'the file is short'
umount "$mnt"
e2fsck -fn /dev/ujournal/$name >"$work/fsck" 2>&1 || fail "e2fsck: $(<"$work/fsck")"

step 'stop --force: whoever has it open gets errors, the array is clean'
exec {fd}</dev/ublkb0
expect 0 stop --force $name
exec {fd}<&-
expect 0 check "$config"
says 'it was stopped cleanly'

step 'stop --force without a daemon: the device goes, the array stays dirty and recovers'
expect 0 start "$config"
mount /dev/ujournal/$name "$mnt"
pid=$(daemon)
kill -KILL "$pid"
gone "$pid"
expect 0 stop --force $name
says 'the array stays dirty'
nothing_left
umount "$mnt"
expect 1 stop --force $name
says "no array $name is running"
expect 0 start "$config"
grep -q '"kind":"recovery"' /run/ujournal/$name.log || fail 'no recovery'
expect 0 stop $name

step 'foreground: the paths on stdout, the log on stderr, an end by SIGINT'
"$ujournal" start --foreground "$config" >"$work/out" 2>"$work/err" &
pid=$!
for _ in $(seq 600); do
    [ -S /run/ujournal/$name.sock ] && [ -s "$work/out" ] && break
    kill -0 "$pid" 2>/dev/null || fail "it ended: $(<"$work/err")"
    sleep 0.05
done
expect 0 status $name
kill -INT "$pid"
wait "$pid" || fail "it failed: $(<"$work/err")"
expect 0 check "$config"
says 'it was stopped cleanly'

step 'where mounts are not shared, what is unmounted is not kept by the daemon'
mount --make-rprivate /
mkdir "$work/other"
mount -t tmpfs none "$work/other"
expect 0 start "$config"
umount "$work/other"
! grep -q "$work/other" "/proc/$(daemon)/mountinfo" || fail 'the daemon keeps a foreign filesystem mounted'
mount /dev/ujournal/$name "$mnt"
kill -KILL "$(daemon)"
expect 0 start "$config"
umount "$mnt"
expect 0 stop $name
nothing_left

step 'clear; after that start is refused'
expect 0 clear "$config"
expect 3 start "$config"
says 'carries no ujournal label'
nothing_left
echo 'commands: all held'
