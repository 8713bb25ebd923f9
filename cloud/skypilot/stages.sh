#!/usr/bin/env bash
# Run stages of one run, one after the other, each from the store and into it.
#
#   STORE=s3://bucket/deep RUN=deep OVERRIDES='preset=paper' cloud/skypilot/stages.sh vae rnn
#
# The exit code is that of the first stage that does not finish: 75 means stopped with progress
# saved, run it again (recover_on_exit_codes in the tasks); any other code means that it failed.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."

read -r -a overrides <<<"${OVERRIDES-}"
# A machine that takes the place of another would begin anew.
for word in "${overrides[@]}"; do
    [[ $word =~ ^\+*overwrite= && $word != *=false ]] || continue
    echo "OVERRIDES: $word deletes the progress of a machine that was lost;" \
        "use another RUN or STORE" >&2
    exit 2
done
for stage; do
    .venv/bin/python -m worldmodels "stage=$stage" "run=$RUN" "${overrides[@]}" \
        "store=$STORE" "resume=$STORE"
done
