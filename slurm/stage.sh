# shellcheck shell=bash
# Sourced by the batch scripts beside it: runs one stage as a job step that survives preemption.
#
# The program answers SIGTERM by saving its progress and exiting with 75. SIGTERM reaches it
#   - from Slurm itself, when a job of higher priority takes the node (PreemptMode=REQUEUE with a
#     GraceTime): Slurm signals job steps, not the batch script, hence the srun below;
#   - from this script, which is warned before the time limit (--signal=B:TERM@120).
# Either way the job goes back into the queue under its old number, so that jobs that depend on it
# keep waiting, and continues where it stopped. Any other exit code is the job's own.
set -euo pipefail

readonly EXIT_STOPPED=75        # worldmodels/errors.py: stopped, progress saved
readonly KILLED_BY_SIGTERM=143  # 128 + 15: stopped while still importing, nothing to save

step_options=(--ntasks=1)  # of srun

# run_stage STAGE [OVERRIDE...]: run `python -m worldmodels stage=STAGE OVERRIDE...`, then exit.
run_stage() {
    local stage=$1 step code warned
    shift
    echo "$(date --iso-8601=seconds) stage=$stage job=$SLURM_JOB_ID" \
        "restart=${SLURM_RESTART_COUNT:-0} node=${SLURMD_NODENAME:-$(uname -n)} cpus=$SLURM_CPUS_PER_TASK"

    # Overrides given last win: what overwrite=true would delete now is this job's own progress.
    [[ ${SLURM_RESTART_COUNT:-0} -eq 0 ]] || set -- "$@" overwrite=false

    # Where Slurm does not bind a job to its cores, the machine's would be counted.
    export LOKY_MAX_CPU_COUNT=${LOKY_MAX_CPU_COUNT:-$SLURM_CPUS_PER_TASK}

    trap 'warned=yes; warn "$stage" || true' TERM
    # Since Slurm 22.05 a step no longer inherits --cpus-per-task.
    srun "${step_options[@]}" --job-name="$stage" --cpus-per-task="$SLURM_CPUS_PER_TASK" \
        python -m worldmodels "stage=$stage" "$@" &
    step=$!

    # A trapped signal ends `wait` early, with a code that is not the step's: wait again.
    while true; do
        warned=no
        code=0
        wait "$step" || code=$?
        [[ $warned == yes ]] || break
    done

    case $code in
        "$EXIT_STOPPED" | "$KILLED_BY_SIGTERM") requeue "$code" ;;
        *) exit "$code" ;;
    esac
}

# warn STEP: tell the program in the job step of that name to save. Not by `kill`: srun answers
# SIGTERM by killing its tasks, while scancel signals the tasks alone. Not the whole job: it may have
# other steps (ray.sbatch).
warn() {
    local id name
    while read -r id name; do
        [[ $name != "$1" ]] || scancel --quiet --signal=TERM "$id"
    done < <(squeue --steps --noheader --format="%i %j" --jobs="$SLURM_JOB_ID")
}

# requeue CODE: put this job back into the queue and exit with CODE. A job that is no longer running
# was cancelled by its owner, or is already requeued by Slurm: both are left as they are.
requeue() {
    local state
    state=$(squeue --noheader --format=%T --jobs="$SLURM_JOB_ID") || state=gone
    if [[ $state != RUNNING ]]; then
        echo "stopped with progress saved: job $SLURM_JOB_ID is $state, left to Slurm"
    elif scontrol requeue "$SLURM_JOB_ID"; then
        echo "stopped with progress saved: job $SLURM_JOB_ID requeued"
    else
        echo "stopped with progress saved, but Slurm refused to requeue job $SLURM_JOB_ID:" \
            "submit the stage again to continue" >&2
    fi
    exit "$1"
}
