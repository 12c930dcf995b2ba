# shellcheck shell=bash
# An array under test, for the scripts of this folder that run inside the lab. To be sourced by bash,
# not run.
#
#   serve_drives MEMBER MEMBER JOURNAL
#                   makes an emulated drive of each of three disks. A lab's own disk says that it can
#                   zero a range and then cannot, so that nobody sends it discards any more; these can.
#   make_array PLACEMENT
#                   labels it anew, whatever the disks held. Its journal is `detached`, or attached at
#                   the `start`, `middle` or `end` of the members; then the third disk is not used.
#   start_array     sets `device`
#   stop_array      its state was sound, and everything is home
#   say TEXT...     a line on stderr
#   die TEXT...     a line on stderr, then exit 1
#
# A script that ends with another status than 0 shows the end of the daemon's log. UJOURNAL_BIN names the
# folder of the programs; the default is the release build of this checkout.

array_name=tested
attached_size=256MiB
array_folder="$(mktemp -d)"
export PATH="${UJOURNAL_BIN:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/target/release}:$PATH"
device=
drives=()
trap end_array EXIT

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

die() {
    say "$*"
    exit 1
}

serve_drives() {
    local disk
    for disk; do
        drives+=("$(drive serve --file "$disk" --discard --log "$array_folder/drives.log")")
    done
}

make_array() {
    local place
    case "$1" in
        detached) place="device = \"${drives[2]}\"" ;;
        start | middle | end) place="size = \"$attached_size\""$'\n'"placement = \"$1\"" ;;
        *) die "expected detached, start, middle or end, found '$1'" ;;
    esac
    cat >"$array_folder/array.toml" <<END
name = "$array_name"
[data]
members = ["${drives[0]}", "${drives[1]}"]
chunk = "64KiB"
[journal]
$place
END
    ujournal label --force "$array_folder/array.toml" >"$array_folder/labelled"
}

start_array() {
    ujournal start "$array_folder/array.toml" >"$array_folder/paths"
    device="$(head -n 1 "$array_folder/paths")"
    [[ -b $device ]] || die "ujournal start printed '$device', which is not a block device"
}

stop_array() {
    local state
    state="$(ujournal list --json | sed -n 's/.*"state": *"\([A-Z]*\)".*/\1/p' | paste -s)"
    [[ $state == CLEAN || $state == DIRTY ]] || die "the array is '$state', expected CLEAN or DIRTY"
    ujournal stop "$array_name" >"$array_folder/stopped" 2>&1 || {
        cat "$array_folder/stopped" >&2
        die "ujournal stop"
    }
    device=
}

end_array() {
    local status=$?
    if ((status != 0)) && [[ -s /run/ujournal/$array_name.log ]]; then
        say "the daemon's log ends with:"
        tail -n 20 "/run/ujournal/$array_name.log" >&2
    fi
    if [[ -n $device ]]; then timeout 60 ujournal stop --force "$array_name" >/dev/null 2>&1 || true; fi
    if ((${#drives[@]} > 0)); then timeout 60 drive stop "${drives[@]}" || true; fi
    rm -rf --one-file-system "$array_folder"
}
