#!/usr/bin/env bash
# Measures a mounted filesystem with bonnie++ and postmark and prints their key figures.
#
#   bench.sh FOLDER [SIZE_MIB [TRANSACTIONS]]
#
#   FOLDER        where to measure, normally a mount point; needs twice SIZE_MIB free; what the
#                 programs made there is gone afterwards
#   SIZE_MIB      bonnie++'s file, default 256. What fits into memory is read from memory: for
#                 figures of the disk it must be at least twice as large as that
#   TRANSACTIONS  postmark's, default 20000, over 2000 files of 500 B to 10 kB, written in 512 B
#                 pieces, seven appends to three reads
#
# Prints one "key value" a line on stdout:
#
#   bonnie_{write,rewrite,read}_kib_per_second, bonnie_seeks_per_second,
#   bonnie_{create,delete}_files_per_second
#   postmark_transactions_per_second      its own figure, in whole seconds of its clock
#   postmark_synced_transactions_per_second
#                                         the whole run, and all of it written out to the disk
#   postmark_{read,written}_mb
#
# The value is "unmeasured" where bonnie++ found a test too short to tell.
# Exit codes: 0 measured; 1 a program failed or printed what is not understood; 2 wrong usage.
set -euo pipefail

say() { printf 'bench.sh: %s\n' "$*" >&2; }

if (($# < 1 || $# > 3)) || [[ ! -d $1 ]]; then
    say "expected FOLDER [SIZE_MIB [TRANSACTIONS]], found '$*'"
    exit 2
fi
size_mib="${2:-256}" transactions="${3:-20000}"
for number in "$size_mib" "$transactions"; do
    if [[ ! $number =~ ^[1-9][0-9]{0,8}$ ]]; then
        say "expected a positive number, found '$number'"
        exit 2
    fi
done

folder="$(mktemp -d "$1/bench.XXXXXX")"
scratch="$(mktemp -d)"
trap 'rm -rf "$folder" "$scratch"' EXIT

# `-r` is the memory that it takes for granted; it refuses a file smaller than twice that.
bonnie() {
    bonnie++ -q -f -d "$folder" -s "$size_mib" -r $((size_mib / 4)) -n 8 -u root -m bench -z 1 \
        >"$scratch/bonnie.csv" 2>"$scratch/bonnie.log" || {
        cat "$scratch/bonnie.log" >&2
        say "bonnie++ failed"
        return 1
    }
    local fields
    IFS=, read -r -a fields < <(tail -n 1 "$scratch/bonnie.csv")
    if [[ ${fields[0]} != 1.98 ]]; then
        say "bonnie++ printed its format ${fields[0]}, expected 1.98"
        return 1
    fi
    figure bonnie_write_kib_per_second "${fields[11]}"
    figure bonnie_rewrite_kib_per_second "${fields[13]}"
    figure bonnie_read_kib_per_second "${fields[17]}"
    figure bonnie_seeks_per_second "${fields[19]}"
    figure bonnie_create_files_per_second "${fields[26]}"
    figure bonnie_delete_files_per_second "${fields[30]}"
}

postmark_run() {
    local begin end micros
    # It ends with 0 even if a write failed, but its report then lacks lines.
    begin="${EPOCHREALTIME/[.,]/}"
    postmark >"$scratch/postmark.log" 2>&1 <<END
set location $folder
set number 2000
set transactions $transactions
set size 500 10000
set read 512
set write 512
set bias read 3
set buffering false
set seed 42
run
quit
END
    sync -f "$folder"
    end="${EPOCHREALTIME/[.,]/}"
    micros=$((end - begin))
    if grep -q -i error "$scratch/postmark.log"; then
        cat "$scratch/postmark.log" >&2
        say "postmark failed"
        return 1
    fi
    figure postmark_transactions_per_second \
        "$(sed -n 's/.*seconds of transactions (\([0-9]*\) per second).*/\1/p' "$scratch/postmark.log")"
    figure postmark_synced_transactions_per_second $((transactions * 1000000 / micros))
    figure postmark_read_mb "$(megabytes read)"
    figure postmark_written_mb "$(megabytes written)"
}

# postmark's report gives an amount in bytes, kilobytes, megabytes or gigabytes.
megabytes() {
    awk -v what="$1" '$3 == what {
        factor["bytes"] = 1 / 1048576; factor["kilobytes"] = 1 / 1024
        factor["megabytes"] = 1; factor["gigabytes"] = 1024
        if ($2 in factor) printf "%.2f", $1 * factor[$2]
    }' "$scratch/postmark.log"
}

figure() {
    case "$2" in
        +*) echo "$1 unmeasured" ;;
        *)
            if [[ ! $2 =~ ^[0-9]+(\.[0-9]+)?$ ]]; then
                say "$1: expected a number, found '$2'"
                return 1
            fi
            echo "$1 $2"
            ;;
    esac
}

bonnie
sync -f "$folder"
postmark_run
