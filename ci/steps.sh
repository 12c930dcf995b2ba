# shellcheck shell=bash
# A demonstration's steps: one line each on stdout, with the time it took and what came of it. To be
# sourced by bash, not run:
#
#   source "$(dirname "${BASH_SOURCE[0]}")/steps.sh" FOLDER
#
#   step TEXT COMMAND...   runs COMMAND in this shell, its output in FOLDER/step.log. The command may
#                          set `note`, which ends the line. If it fails, the script ends, and the line
#                          and the end of the log say why: call `tell_failure` from the EXIT trap.
#   fail TEXT...           in a step: it has failed, and why
#   fact NAME VALUE        keeps a figure in FOLDER/facts, for the table at the end
#   fact_of NAME           prints the newest of that name; fails if there is none
#   milliseconds           prints the time of day in milliseconds

steps_folder="$1"
step_name=
note=
# The script's own output, whatever a step's is.
exec 3>&1 4>&2

step() {
    local begin end
    step_name="$1"
    shift
    note=
    printf '  %-52s' "$step_name" >&3
    begin="$(milliseconds)"
    # Not below an `if` or a `!`: there bash would go on past a failure within.
    "$@" >"$steps_folder/step.log" 2>&1 </dev/null
    end="$(milliseconds)"
    printf '%6d.%d s%s\n' $(((end - begin) / 1000)) $(((end - begin) % 1000 / 100)) "${note:+  $note}" >&3
    step_name=
}

tell_failure() {
    [[ -n $step_name ]] || return 0
    printf '  FAILED\n\n' >&3
    printf '%s: the step "%s" failed; its last lines:\n' "${0##*/}" "$step_name" >&4
    tail -n 20 "$steps_folder/step.log" | sed 's/^/    /' >&4
    step_name=
}

fail() {
    printf '%s\n' "$*" >&2
    exit 1
}

fact() {
    printf '%s %s\n' "$1" "$2" >>"$steps_folder/facts"
}

fact_of() {
    local value
    value="$(sed -n "s/^$1 //p" "$steps_folder/facts" | tail -n 1)"
    if [[ -z $value ]]; then
        printf '%s: there is no figure "%s"\n' "${0##*/}" "$1" >&2
        return 1
    fi
    printf '%s\n' "$value"
}

milliseconds() {
    local now="${EPOCHREALTIME/[.,]/}"
    echo $((now / 1000))
}
