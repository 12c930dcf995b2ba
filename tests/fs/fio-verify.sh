#!/usr/bin/env bash
# Loads a raw block device with every kind of request at once, and compares what it reads with what
# it wrote. Destroys what the device held.
#
#   fio-verify.sh DEVICE SECONDS SEED [--discard-zeroes]
#
#   SECONDS           rounds are begun for so long; each takes some seconds itself
#   SEED              a number: the same one makes the same requests
#   --discard-zeroes  the device promises that what was discarded reads as zeros
#
# Each round divides the device into five slots and runs five jobs side by side, each in another
# slot than in the round before; all of it past the page cache, in blocks of 512 B to 1 MiB:
#
#   flushed    random writes, fsync after every 16
#   streamed   sequential writes, fdatasync after every 8
#   fua        random writes with O_DSYNC
#   trimmed    each place is discarded and then written; random reads of the device among them
#              (where the device takes no discards: reads and writes, and the script says so)
#   mixed      `block_ops.py`: writes, FUA, flushes, zeroes without data, discards and reads, each
#              compared with a copy in memory
#
# The first four are fio's with verify=crc32c: everything written is read again in the round.
# Exit codes: 0 all as written; 1 a difference, or the device failed; 2 wrong usage.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
say() { printf 'fio-verify.sh: %s\n' "$*" >&2; }

jobs=(flushed streamed fua trimmed mixed)
# What each of fio's jobs writes in one round; more than a slot holds means the whole slot.
mib_per_round=24
block_sizes=512/15:1k/5:4k/35:8k/10:12k/5:64k/15:256k/8:512k/4:1m/3

if (($# < 3 || $# > 4)) || [[ ! $2 =~ ^[0-9]{1,6}$ || ! $3 =~ ^[0-9]{1,9}$ || ${4:---discard-zeroes} != --discard-zeroes ]]; then
    say "expected DEVICE SECONDS SEED [--discard-zeroes], found '$*'"
    exit 2
fi
device="$1" seconds="$2" seed="$3"
discard_zeroes=("${@:4}")
if [[ ! -b $device ]]; then
    say "'$device' is not a block device"
    exit 2
fi
slot_mib=$(($(blockdev --getsize64 "$device") / (1 << 20) / ${#jobs[@]}))
if ((slot_mib < 2)); then
    say "'$device' is too small: expected at least 10 MiB"
    exit 2
fi

scratch="$(mktemp -d)"
mixed=
trap 'if [[ -n $mixed ]]; then kill "$mixed" 2>/dev/null || true; fi; rm -rf "$scratch"' EXIT

discards="$(lsblk --nodeps --noheadings --bytes --output DISC-MAX "$device" | tr -d ' ')"
if ((discards > 0)); then
    trimmed_kind=randtrimwrite
else
    trimmed_kind=randrw
    say "$device takes no discards: none is sent"
fi

# slot_of JOB ROUND: where it begins, in MiB.
slot_of() {
    echo $((($1 + $2) % ${#jobs[@]} * slot_mib))
}

# The round's four jobs as fio wants them.
job_file() {
    local round="$1" written=$((mib_per_round < slot_mib ? mib_per_round : slot_mib)) job
    cat <<END
[global]
filename=$device
direct=1
ioengine=io_uring
verify=crc32c
verify_fatal=1
verify_state_save=0
# Some of it is compared while the writing goes on.
verify_backlog=64
bssplit=$block_sizes
randseed=$((seed + round))
size=${slot_mib}m
io_size=${written}m
norandommap=0
END
    for job in 0 1 2 3; do
        printf '\n[%s]\noffset=%dm\n' "${jobs[job]}" "$(slot_of "$job" "$round")"
        case "${jobs[job]}" in
            flushed) printf 'rw=randwrite\niodepth=16\nfsync=16\n' ;;
            streamed) printf 'rw=write\niodepth=4\nfdatasync=8\n' ;;
            fua) printf 'rw=randwrite\niodepth=8\nsync=dsync\n' ;;
            trimmed) printf 'rw=%s\niodepth=8\n' "$trimmed_kind" ;;
        esac
    done
}

fail() {
    say "$device: FAILED in round $1 (seed $seed)"
    exit 1
}

deadline=$((SECONDS + seconds))
round=0
while ((round == 0 || SECONDS < deadline)); do
    "$here/block_ops.py" "$device" $(($(slot_of 4 "$round") << 20)) \
        $(((slot_mib < 64 ? slot_mib : 64) << 20)) --seconds 4 --seed $((seed + round)) \
        "${discard_zeroes[@]}" >"$scratch/mixed" 2>&1 &
    mixed=$!
    job_file "$round" >"$scratch/jobs.fio"
    fio --output="$scratch/fio.log" --minimal "$scratch/jobs.fio" >"$scratch/fio.errors" 2>&1 || {
        cat "$scratch/fio.errors" "$scratch/jobs.fio" >&2
        fail "$round"
    }
    wait "$mixed" || {
        mixed=
        cat "$scratch/mixed" >&2
        fail "$round"
    }
    mixed=
    round=$((round + 1))
done
cat "$scratch/mixed" >&2
echo "verified rounds $round, seed $seed"
