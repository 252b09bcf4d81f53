#!/usr/bin/env bash
# Runs `memfit ci` and posts its report as a comment of the pull or merge request.
#
#   MEMFIT   folder of the environment that memfit is installed in
#   BASE     commit to compare with; empty for the committed baselines
#   REPORT   file for the report, as Markdown
#
# The exit status is that of `memfit ci`: a comment that cannot be posted fails no job.
set -euo pipefail

options=()
if [ -n "${BASE:-}" ]; then
    options+=(--base "$BASE")
fi
status=0
"$MEMFIT/bin/memfit" ci --format markdown "${options[@]}" > "$REPORT" || status=$?
cat "$REPORT"
if [ -s "$REPORT" ]; then
    "$MEMFIT/bin/python" -m memfit.comment "$REPORT" || echo "memfit: the report was not posted" >&2
fi
exit "$status"
