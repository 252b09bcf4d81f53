#!/bin/sh
# Dry-runs the example on a card that holds it and on one that does not; ends well if both come out as they should.
#
#   sh scripts/demo.sh FOLDER-OF-MEMFIT
set -eu
memfit="$(cd "${1:-.venv/bin}" && pwd)/memfit"
cd "$(dirname "$0")/../examples/classifier"

# Runs the example on a card and holds the exit status to what it should be.
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
printf '\nBoth came out as they should: it fits on the one and not on the other, and no GPU was asked.\n'
