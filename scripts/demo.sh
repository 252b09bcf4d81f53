#!/bin/sh
# Dry-runs the example on a GPU where it fits and on one where it does not. Succeeds if both answers are as expected.
#
#   sh scripts/demo.sh FOLDER-OF-MEMFIT
set -eu
memfit="$(cd "${1:-.venv/bin}" && pwd)/memfit"
cd "$(dirname "$0")/../examples/classifier"

# Runs the example on a virtual GPU and checks the exit status.
dry_run() {
    card=$1 expected=$2 meaning=$3
    printf '\n$ memfit run --gpu %s -- python train.py\n\n' "$card"
    status=0
    "$memfit" run --gpu "$card" -- python train.py || status=$?
    if [ "$status" -ne "$expected" ]; then
        printf '\nThe demo expected that it %s on %s (status %s), and got status %s.\n' \
            "$meaning" "$card" "$expected" "$status" >&2
        exit 1
    fi
}

dry_run rtx-4090 0 fits
dry_run rtx-4060 1 "runs out of memory"
printf '\nBoth answers are as expected: it fits on the first GPU and not on the second. No real GPU was needed.\n'
printf '\nnext:\n  . %s/activate\n  memfit run --gpu rtx-4090 -- python YOUR_SCRIPT.py\n' "${1:-.venv/bin}"
