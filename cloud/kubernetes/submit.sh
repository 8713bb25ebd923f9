#!/usr/bin/env bash
# Run the stages of a run as Jobs of a Kubernetes cluster; each starts when the one before it has
# finished.
#
#   IMAGE=registry/worldmodels:1 STORE=s3://bucket/deep \
#       cloud/kubernetes/submit.sh RUN [OVERRIDE...]
#   ... JOBS='rollouts models ray' cloud/kubernetes/submit.sh deep preset=paper
#
# JOBS: names of the manifests beside this file (rollouts models controller), or one of them: `all`
# is a whole run on one GPU node. kubectl's context and namespace are used. Interrupted, this script
# leaves the Job that runs; the same line goes on from there.
set -euo pipefail

say() { echo "cloud/kubernetes/submit.sh: $*" >&2; }

if [[ $# -eq 0 || $1 == -* || $1 == *=* || -z ${IMAGE-} || -z ${STORE-} ]]; then
    echo "usage: IMAGE=... STORE=... cloud/kubernetes/submit.sh RUN [OVERRIDE...]" >&2
    exit 2
fi
run=$1
shift
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"

# A pod that takes the place of another would begin anew.
for word; do
    [[ $word =~ ^\+*overwrite= && $word != *=false ]] || continue
    say "$word: deletes the progress of a pod that was stopped; use another run or store"
    exit 2
done
# They are written into YAML and, for Ray, into a shell command.
overrides=("run=$run" "$@" "store=$STORE" "resume=$STORE")
for word in "$IMAGE" "${overrides[@]}"; do
    [[ $word =~ ^[A-Za-z0-9_.,:/=~+@-]+$ ]] || {
        say "$word: has characters that need quotes; write this value into the manifests instead"
        exit 2
    }
done
# Kubernetes takes lower case, digits and hyphens.
name=$(tr '[:upper:]_./' '[:lower:]---' <<<"$run")

manifest() {
    local text
    text=$(<"$1.yaml")
    text=${text//name: worldmodels-/name: "$name"-}
    text=${text//image: worldmodels/image: "$IMAGE"}
    if [[ $1 == ray ]]; then
        echo "${text//OVERRIDES/"${overrides[*]} data=/workspace/data"}"
    else
        local words
        printf -v words '"%s", ' "${overrides[@]}"
        echo "${text//OVERRIDES/"${words%, }"}"
    fi
}

# state JOB: succeeded, failed, or nothing yet.
state() {
    local found
    if [[ $1 == ray ]]; then
        found=$(kubectl get rayjob "$name-$1" --output jsonpath='{.status.jobDeploymentStatus}')
    else
        found=$(kubectl get job "$name-$1" \
            --output jsonpath='{.status.conditions[?(@.status=="True")].type}')
    fi
    case " $found " in
        *" Complete "*) echo succeeded ;;
        *" Failed "*) echo failed ;;
    esac
}

for job in ${JOBS:-rollouts models controller}; do
    manifest "$job" | kubectl apply --filename -
    until [[ -n $(state "$job") ]]; do
        sleep "${POLL_SECONDS:-10}"
    done
    if [[ $(state "$job") == failed ]]; then
        kind=job
        [[ $job != ray ]] || kind=rayjob
        say "$name-$job failed: see kubectl logs --selector job-name=$name-$job --all-containers;" \
            "then kubectl delete $kind $name-$job, and submit again: it continues from $STORE"
        exit 1
    fi
    say "$name-$job has finished"
done
say "the results are in $STORE"
