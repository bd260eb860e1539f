#!/bin/sh
# Measures everything that this folder shows, and puts results and figures beside this file. Half an hour on a quiet machine;
# QUICK=1 measures each event once and for some seconds, for a first look.
#
#   experiments/failover/run.sh [path of the nacre program]
#
# REPETITIONS is how often each event is measured: 5. BEFORE and AFTER are the times up to an event and from there: 60s and 30s for the
# kill, 10s and 10s for the others. DURABILITY says where the store keeps its objects: volatile, or always for the disk.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
nacre=${1:-nacre}
if [ -n "${QUICK:-}" ]; then
    set -- --quick
else
    set -- --repeat "${REPETITIONS:-5}"
fi
[ -z "${BEFORE:-}" ] || set -- "$@" --before "$BEFORE"
[ -z "${AFTER:-}" ] || set -- "$@" --after "$AFTER"
"$nacre" bench failover --durability "${DURABILITY:-volatile}" --out "$here" --results "$here/failover.json" "$@" >"$here/failover.txt"
cat "$here/failover.txt"
