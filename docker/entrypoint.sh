#!/usr/bin/env bash
# What a container or a rented machine runs: `python -m worldmodels`, then the end of the machine.
#
#   docker/entrypoint.sh stage=all preset=paper store=s3://bucket/deep resume=s3://bucket/deep
#
# With store=, the program ends when everything is in the store, so nothing has to be copied here.
#
#   WORLDMODELS_RESTARTS=10        run it again, so many times at most, when it ends with 75 (stopped,
#                                  progress saved) although this script was not told to stop
#   WORLDMODELS_SHUTDOWN=COMMAND   run this command when the program has ended: 'sudo poweroff', or
#                                  what the provider has for it. Not after 74 (the store lacks
#                                  files, which this machine alone has), and not after this script
#                                  was told to stop: then something else is about to end the machine
#   WORLDMODELS_SHUTDOWN_DELAY=N   seconds between a failure and that command (3600), in which the
#                                  machine can be looked at
#
# SIGTERM and Ctrl-C reach the program. The exit code is the program's.
set -euo pipefail

readonly EXIT_UNCOPIED=74       # worldmodels/errors.py: finished, but the store lacks files
readonly EXIT_STOPPED=75        # worldmodels/errors.py: stopped, progress saved
readonly KILLED_BY_SIGTERM=143  # 128 + 15: stopped while still importing, nothing to save

say() { echo "entrypoint.sh: $*" >&2; }

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."  # from anywhere: `data` is a folder of the checkout

restarts=${WORLDMODELS_RESTARTS:-0}
delay=${WORLDMODELS_SHUTDOWN_DELAY:-3600}
for pair in "RESTARTS=$restarts" "SHUTDOWN_DELAY=$delay"; do
    [[ ${pair#*=} =~ ^[0-9]{1,9}$ ]] || {
        say "WORLDMODELS_$pair: is no whole number; give one from 0 to 999999999"
        exit 2
    }
done
restarts=$((10#$restarts))  # not octal where it begins with 0

if [[ $restarts -eq 0 && -z ${WORLDMODELS_SHUTDOWN-} ]]; then
    exec python -m worldmodels "$@"
fi

# Jobs have process groups of their own: Ctrl-C reaches this script alone, which passes it on. A
# background job of the same group would ignore it.
set -m
told=no
job=
trap 'told=yes; [[ -z $job ]] || kill -TERM -- "$job" 2>/dev/null || true' TERM INT

# finish COMMAND...: run it; the result is its exit code. A trapped signal ends `wait` early, with
# another code, so it is asked once more when the job has gone.
finish() {
    local code=0
    "$@" &
    job=$!
    while kill -0 "$job" 2>/dev/null; do
        wait "$job" || true
    done
    wait "$job" || code=$?
    job=
    return "$code"
}

while true; do
    code=0
    finish python -m worldmodels "$@" || code=$?
    [[ $code -ne $KILLED_BY_SIGTERM || $told == no ]] || code=$EXIT_STOPPED
    [[ $code -eq $EXIT_STOPPED && $told == no && $restarts -gt 0 ]] || break
    restarts=$((restarts - 1))
    say "stopped with progress saved: running it again (restarts left: $restarts)"
    set -- "$@" overwrite=false  # the last word wins: true would delete the progress
done

[[ -n ${WORLDMODELS_SHUTDOWN-} && $told == no ]] || exit "$code"
if [[ $code -eq $EXIT_UNCOPIED ]]; then
    say "the store lacks files that are here: this machine keeps running; the same command copies them"
    exit "$code"
fi
if [[ $code -ne 0 ]]; then
    say "ended with $code: $WORLDMODELS_SHUTDOWN in $delay seconds"
    finish sleep "$delay" || true
    [[ $told == no ]] || exit "$code"
fi
finish bash -c "$WORLDMODELS_SHUTDOWN" || say "WORLDMODELS_SHUTDOWN failed: this machine keeps running"
exit "$code"
