#!/bin/sh
# Feeds the parsers with garbage for SECONDS each, guided by coverage; ends well if none of them fell.
#
#   sh scripts/fuzz.sh [SECONDS] [TARGET...]
#
# The instrumentation is what cargo-fuzz uses without a sanitizer, which the stable compiler can do: overflows, bounds
# and assertions are checked, and Rust's own rules do the rest. It needs a C++ compiler for libFuzzer itself.
set -eu
cd "$(dirname "$0")/../fuzz"
seconds=${1:-20}
[ $# -gt 0 ] && shift
host=$(rustc -vV | sed -n 's/^host: //p')

RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Ccodegen-units=1 --cfg fuzzing" cargo build --release --locked --target "$host"

[ $# -gt 0 ] || set -- $(sed -n 's/^name = "\(.*\)"$/\1/p' Cargo.toml | grep -v memfit-fuzz)
for target in "$@"; do
    corpus="corpus/$target"
    mkdir -p "$corpus" artifacts
    # Inputs from longer runs (scripts/fuzz_hours.py).
    if [ -f "$corpus.tar.gz" ]; then tar -xzf "$corpus.tar.gz" -C "$corpus"; fi
    # Inputs that reach much code: for Python, the specifications of the rules.
    seeds=
    [ "$target" != source ] || seeds=../crates/memfit-lint/specs
    echo "fuzzing $target for $seconds s"
    "target/$host/release/$target" "$corpus" $seeds -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 \
        -max_len=65536 -artifact_prefix="artifacts/$target-" -print_final_stats=1 -verbosity=0 2>&1 |
        sed -n -e '/^stat::number_of_executed_units/p' -e '/^stat::peak_rss_mb/p' -e '/ERROR/p' -e '/panicked/,$p' >"artifacts/$target.log" &&
        cat "artifacts/$target.log"
    if ls artifacts/"$target"-* >/dev/null 2>&1; then
        echo "$target fell; what made it fall is in fuzz/artifacts" >&2
        exit 1
    fi
done
