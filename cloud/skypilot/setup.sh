#!/usr/bin/env bash
# On a rented machine, in the synchronised checkout: the program in .venv, at the locked versions,
# with the package that reaches $STORE.
#
#   STORE=s3://bucket/deep cloud/skypilot/setup.sh [EXTRA...]
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."

case $STORE in
    s3://*) set -- "$@" s3 ;;
    gs://*) set -- "$@" gcs ;;
esac
extras=$(IFS=,; echo "$*")
command -v uv >/dev/null || python3 -m pip install --quiet uv
# The images of most providers have an older Python than the program needs: uv brings one.
uv venv --quiet --allow-existing --python '>=3.11' .venv
uv pip install --quiet --python .venv/bin/python --constraint constraints.txt --editable ".[$extras]"
