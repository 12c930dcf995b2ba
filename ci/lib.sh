# shellcheck shell=bash
# Small functions that the scripts of this folder share. To be sourced by bash, not run:
#
#   source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
#
#   log TEXT...            a line on stderr, with the time of day
#   die TEXT...            a line on stderr, then exit 1
#   usage_error TEXT...    a line on stderr, then exit 2
#   stage NAME COMMAND...  runs COMMAND and prints how long it took; returns its status
#   stage_summary          prints every stage so far with its time and status
#   build_programs         the program, what the tests run beside it, and the examples, in `target/release`
#   cache_folder           prints the folder that outlives the checkout, and makes it
#   lab_with_disks SIZES [OPTION...] -- COMMAND...
#                          runs COMMAND in the lab (`ci/lab`) with new disks of these sizes, such as
#                          512M,512M,256M; they are sparse files in memory and gone afterwards
#
# Everything here writes to stderr, so that stdout stays the caller's.

program="${0##*/}"

log() {
    printf '%(%H:%M:%S)T %s: %s\n' -1 "$program" "$*" >&2
}

die() {
    printf '%s: %s\n' "$program" "$*" >&2
    exit 1
}

usage_error() {
    printf '%s: %s\n' "$program" "$*" >&2
    exit 2
}

# One line for each finished stage, for `stage_summary`.
stage_lines=()

# The command runs in a subshell under `set -e`, so that a stage which is a function ends at its
# first failure. Bash gives up `set -e` in all that runs below `if`, `||` and `&&`, past recovery;
# calling `stage` there would let a broken function run on and pass, so it is refused.
stage() {
    local name="$1" status begin end line errexit_was=off
    shift
    [[ $- == *e* ]] && errexit_was=on
    set +e
    # shellcheck disable=SC2031
    (
        set -e
        false
        true
    )
    # shellcheck disable=SC2181
    (($? != 0)) || die "stage '$name' stands where its status is tested"
    log "$name ..."
    begin="${EPOCHREALTIME/[.,]/}"
    (
        set -euo pipefail
        "$@"
    )
    status=$?
    end="${EPOCHREALTIME/[.,]/}"
    printf -v line '%-40s %8s s  %s' "$name" "$(seconds_of $((end - begin)))" \
        "$(if ((status == 0)); then echo passed; else echo "FAILED ($status)"; fi)"
    stage_lines+=("$line")
    log "$line"
    if [[ $errexit_was == on ]]; then set -e; fi
    return "$status"
}

# Microseconds as seconds with one decimal.
seconds_of() {
    printf '%d.%d' $(($1 / 1000000)) $(($1 % 1000000 / 100000))
}

stage_summary() {
    printf '%s\n' "${stage_lines[@]}" >&2
}

# Always the same command: with other targets Cargo chooses other features of what they depend on, and
# builds everything once more.
build_programs() {
    cargo build --quiet --release --features drive --bins --examples
}

cache_folder() {
    local folder="${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/ujournal"
    mkdir -p "$folder"
    printf '%s\n' "$folder"
}

lab_with_disks() (
    disk_folder="$(mktemp -d "$(folder_of_disks)/ujournal-disks.XXXXXX")"
    trap 'rm -rf "$disk_folder"' EXIT
    disks=()
    for size in ${1//,/ }; do
        disks+=(--disk "$disk_folder/${#disks[@]}")
        truncate -s "$size" "${disks[-1]}"
    done
    "$(dirname "${BASH_SOURCE[0]}")/lab" "${disks[@]}" "${@:2}"
)

# In memory where there is room, so that a test measures the program and not this machine's disk.
folder_of_disks() {
    local folder
    for folder in /dev/shm "${TMPDIR:-/tmp}"; do
        if [[ -w $folder ]] && (($(stat -f -c '%a * %S' "$folder") > 4 << 30)); then break; fi
    done
    printf '%s\n' "$folder"
}
