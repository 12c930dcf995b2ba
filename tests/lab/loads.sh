#!/usr/bin/env bash
# Long loads on the device, on a detached journal and on an attached one: bonnie++ and postmark to their
# end on ext4, and then every kind of request on the raw device, each compared with what was written.
#
#   loads.sh PLACEMENTS MIB TRANSACTIONS SECONDS SEED MEMBER MEMBER JOURNAL
#
#   PLACEMENTS    of the journal, such as detached,end
#   MIB           the size of bonnie++'s file; twice as much must fit
#   TRANSACTIONS  of postmark
#   SECONDS       how long `fio-verify.sh` begins new rounds
#   SEED          of the latter
#
# Called as root where ublk is, with disks whose content is lost: members of 512 MiB, a journal of 256 MiB.
# Prints the figures and what was compared. Exit codes: 0 all held; 1 something did not; 2 wrong usage.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
usage() {
    printf 'loads.sh: expected PLACEMENTS MIB TRANSACTIONS SECONDS SEED MEMBER MEMBER JOURNAL, %s\n' "$1" >&2
    exit 2
}

(($# == 8)) || usage "found $# arguments"
IFS=, read -r -a placements <<<"$1"
for placement in "${placements[@]}"; do
    [[ $placement =~ ^(detached|start|middle|end)$ ]] || usage "found the placement '$placement'"
done
for number in "${@:2:4}"; do [[ $number =~ ^[0-9]{1,9}$ ]] || usage "found '$number'"; done
mib="$2" transactions="$3" seconds="$4" seed="$5"
disks=("${@:6}")
for disk in "${disks[@]}"; do [[ -b $disk ]] || usage "'$disk' is not a block device"; done

# shellcheck source=tests/lab/array.sh
source "$here/array.sh"
serve_drives "${disks[@]}"
mnt="$array_folder/mnt"
mkdir "$mnt"

for placement in "${placements[@]}"; do
    echo "$placement"
    make_array "$placement"
    start_array

    mkfs.ext4 -q -F "$device"
    mount "$device" "$mnt"
    "$here/../fs/bench.sh" "$mnt" "$mib" "$transactions" | sed 's/^/  /' || {
        umount "$mnt"
        die "bonnie++ and postmark"
    }
    umount "$mnt"
    e2fsck -f -n "$device" >"$array_folder/e2fsck" 2>&1 || {
        cat "$array_folder/e2fsck" >&2
        die "e2fsck found something"
    }

    # Trims and zeroes are to be among the requests, so the device must take them.
    (($(<"/sys/block/${device#/dev/}/queue/discard_max_bytes") > 0)) || die "$device takes no discards"
    (($(<"/sys/block/${device#/dev/}/queue/write_zeroes_max_bytes") > 0)) || die "$device takes no zeroing"
    "$here/../fs/fio-verify.sh" "$device" "$seconds" "$seed" --discard-zeroes | sed 's/^/  /'
    stop_array
done
echo "all loads on ${#placements[@]} arrays held"
