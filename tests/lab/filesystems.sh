#!/usr/bin/env bash
# Filesystems on the device: a tree of files goes in, is compared, the filesystem's checker finds nothing
# wrong, and all of it is so again after a clean stop and a start.
#
#   filesystems.sh COMBINATIONS FILES MEMBER MEMBER JOURNAL
#
#   COMBINATIONS  all    each of ext4, ext2, xfs, btrfs, vfat and ufs on a detached journal, and on one
#                        attached at the start, the middle and the end: 24
#                 each   every filesystem once, every place of the journal at least once: 6
#                 or a list such as ext4:detached,ufs:end
#   FILES         in the tree; 20000 are some 200 MB
#
# Called as root where ublk is, with disks whose content is lost: members of 512 MiB, a journal of 256 MiB.
# For instance
#
#   ci/lab --disk A --disk B --disk C -- tests/lab/filesystems.sh each 500 /dev/ubda /dev/ubdb /dev/ubdc
#
# Prints one line for each combination. Exit codes: 0 all held; 1 one did not; 2 wrong usage.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
filesystems=(ext4 ext2 xfs btrfs vfat ufs)
placements=(detached start middle end)

usage() {
    printf 'filesystems.sh: expected COMBINATIONS FILES MEMBER MEMBER JOURNAL, %s\n' "$1" >&2
    exit 2
}

(($# == 5)) || usage "found $# arguments"
[[ $2 =~ ^[1-9][0-9]{0,6}$ ]] || usage "found '$2' files"
files="$2"
disks=("${@:3}")
for disk in "${disks[@]}"; do [[ -b $disk ]] || usage "'$disk' is not a block device"; done

combinations=()
case "$1" in
    all)
        for filesystem in "${filesystems[@]}"; do
            for placement in "${placements[@]}"; do combinations+=("$filesystem:$placement"); done
        done
        ;;
    each)
        for number in "${!filesystems[@]}"; do
            combinations+=("${filesystems[number]}:${placements[number % ${#placements[@]}]}")
        done
        ;;
    *) IFS=, read -r -a combinations <<<"$1" ;;
esac
for combination in "${combinations[@]}"; do
    [[ " ${filesystems[*]} " == *" ${combination%%:*} "* && " ${placements[*]} " == *" ${combination#*:} "* ]] ||
        usage "found the combination '$combination'"
done

# shellcheck source=tests/lab/array.sh
source "$here/array.sh"
serve_drives "${disks[@]}"

# What it says matters only if it fails.
filesystem() {
    "$here/../fs/filesystem.sh" "$device" "$@" >"$array_folder/filesystem" 2>&1 || {
        cat "$array_folder/filesystem" >&2
        die "$combination: $2 failed"
    }
}

number=0
for combination in "${combinations[@]}"; do
    number=$((number + 1))
    filesystem="${combination%%:*}"
    begin=$SECONDS
    make_array "${combination#*:}"
    start_array
    # Each with a tree of its own, so that one cannot pass for another that lay there before.
    filesystem "$filesystem" fill "$files" "$number"
    stop_array
    start_array
    filesystem "$filesystem" verify "$files" "$number"
    stop_array
    printf '%-6s %-9s %6d files: compared, checked, stopped, started, checked, compared: %4d s\n' \
        "$filesystem" "${combination#*:}" "$files" $((SECONDS - begin))
done
echo "all $number combinations held"
