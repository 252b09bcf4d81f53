#!/bin/sh
# All Rust tests: with nextest where it is installed, which is faster; and the examples in the documentation.
set -eu
cd "$(dirname "$0")/.."
# The same cases each time, so that a result belongs to a commit. scripts/properties.py goes in search of other cases.
export PROPTEST_RNG_SEED="${PROPTEST_RNG_SEED:-2026}"
if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --workspace --locked --no-fail-fast
else
    cargo test --workspace --locked --lib --bins --tests --no-fail-fast
fi
# With a lever that only this build has: its one file is all that a lever needs. `--workspace` has the same features
# of the other packages as above, so that none is compiled again.
cargo test --workspace --features memfit-report/sample --locked --test sample_lever
exec cargo test --workspace --locked --doc
