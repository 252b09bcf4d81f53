#!/bin/sh
# Runs each test of a program in a process of its own: each_test.sh PROGRAM SECONDS
#
# Prints `passed`, `ignored`, `failed` or `endless` and the test's name. The output of a test that did not pass
# is kept in the folder KEPT. Tests whose names begin with LEFT_OUT do not run.
set -eu
program=$1
limit=$2
kept=${KEPT:-/tmp/memfit-tests}
export program limit kept
rm -rf "$kept"
mkdir -p "$kept"
listed=$("$program" --list --format terse)
tests=$(echo "$listed" | sed -n 's/: test$//p' | grep -v "^${LEFT_OUT:-no test}" || true)
if [ -z "$tests" ]; then
    echo "no tests"
    exit
fi
echo "$tests" | xargs -P "$(nproc)" -n 1 sh -c '
    output=$kept/$(echo "$0" | sed "s/::/./g")
    if timeout -k 5 "$limit" "$program" --exact "$0" >"$output" 2>&1; then
        if grep -q "; 1 ignored" "$output"; then echo "ignored $0"; else echo "passed $0"; fi
        rm -f "$output"
    elif [ $? -eq 124 ]; then
        echo "endless $0"
    else
        echo "failed $0"
    fi
'
