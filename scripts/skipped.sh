#!/bin/sh
# The Rust tests that `make test` does not run by themselves, and why. pytest prints its own list.
set -eu
cd "$(dirname "$0")/.."
echo "Rust tests not run by themselves:"
grep -rn --include='*.rs' -A2 '^ *#\[ignore' crates | awk '
    /#\[ignore/ { reason = $0; sub(/.*#\[ignore( = ")?/, "", reason); sub(/"?\].*/, "", reason) }
    /[-:] *(async )?fn / && reason != "" {
        file = $1; sub(/-[0-9]+-.*/, "", file)
        name = $0; sub(/.*fn /, "", name); sub(/\(.*/, "", name)
        printf "  %s %s: %s\n", file, name, reason == "" ? "no reason given" : reason
        reason = ""
    }'
