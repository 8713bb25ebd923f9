#!/usr/bin/env bash
# Submit every stage of a run; each starts when the one before it has succeeded. A configuration with
# changes of later rounds (iterate.schedule) is one job, stage=iterate.
#
#   slurm/submit.sh RUN [OVERRIDE...]
#   slurm/submit.sh deep preset=paper vae.latent_size=64
#
# The overrides go to every stage. Account, partition and QOS are Slurm's own variables:
# SBATCH_ACCOUNT, SBATCH_PARTITION, SBATCH_QOS. Jobs inherit the active Python environment.
set -euo pipefail

if [[ $# -eq 0 || $1 == -* || $1 == *=* ]]; then
    echo "usage: slurm/submit.sh RUN [OVERRIDE...]   (slurm/submit.sh mine preset=laptop)" >&2
    exit 2
fi
run=$1
shift
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

# A mistyped key or an impossible value is an error here, not after hours in the queue.
names=$(python -m worldmodels "run=$run" "$@" --jobs)
mapfile -t stages <<<"$names"

jobs=()
withdraw() {
    [[ ${#jobs[@]} -eq 0 ]] || scancel "${jobs[@]}"
    echo "slurm/submit.sh: sbatch refused a stage; nothing stays in the queue" >&2
}
trap withdraw ERR

for stage in "${stages[@]}"; do
    # The name is part of the log's path (#SBATCH --output), where a slash would be a folder.
    options=(--parsable "--job-name=${run//\//-}-$stage")
    if [[ ${#jobs[@]} -gt 0 ]]; then
        options+=("--dependency=afterok:${jobs[-1]}" --kill-on-invalid-dep=yes)
    fi
    job=$(sbatch "${options[@]}" "slurm/$stage.sbatch" "run=$run" "$@")
    jobs+=("${job%%;*}")  # on a federation sbatch prints "number;cluster"
    echo "${jobs[-1]}  $stage"
done
