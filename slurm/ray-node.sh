#!/usr/bin/env bash
# One node of the Ray cluster of slurm/ray.sbatch, in a job step.
#
#   slurm/ray-node.sh            the head
#   slurm/ray-node.sh ADDRESS    a node of the cluster of that head
set -euo pipefail

# The address under which Slurm reaches this node: Ray's own guess may be that of another network.
address=$(scontrol show node "$SLURMD_NODENAME" --oneliner | grep -oP ' NodeAddr=\K\S+')
ip=$(getent ahostsv4 "$address" | head -n 1 | cut -d ' ' -f 1)

options=(--block "--node-ip-address=$ip" "--num-cpus=$SLURM_CPUS_PER_TASK")
# Free ports in place of Ray's own, which another cluster on this node may have.
options+=(--min-worker-port=0 --max-worker-port=0 --dashboard-agent-listen-port=0)
# For parameters and results, a few megabytes: Ray would take a third of the machine's memory.
options+=(--object-store-memory=500000000)
if [[ $# -eq 0 ]]; then
    options+=(--head --port=0 "--ray-client-server-port=$((20000 + SLURM_JOB_ID % 10000))")
    options+=(--include-dashboard=false --disable-usage-stats "--temp-dir=$RAY_FOLDER")
else
    options+=("--address=$1")
fi

ray start "${options[@]}" &
ray=$!
trap 'kill "$ray" 2>/dev/null || true' TERM
code=0
wait "$ray" || code=$?
wait "$ray" 2>/dev/null || true  # a trapped signal ends the first one early
[[ $# -gt 0 && $(uname -n) == "$RAY_HEAD" ]] || rm -rf -- "$RAY_FOLDER"
exit "$code"
