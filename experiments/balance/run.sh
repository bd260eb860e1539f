#!/bin/sh
# Measures everything that this folder shows, and puts results and figures beside this file. More than an hour on a quiet machine;
# QUICK=1 takes about a minute and is good for a first look only.
#
#   experiments/balance/run.sh [path of the nacre program]
#
# REPETITIONS is how often each system is measured: 3. SHARE is the part of a processor that each rank has, in percent: 20. BEFORE and AFTER
# are the times up to a policy or a move and from there: 20s and 60s. DURABILITY says where the store keeps its objects: volatile, or
# always for the disk. As root, or where control groups can be made otherwise, ranks have quotas; else each is kept to one processor.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
nacre=${1:-nacre}
if [ -n "${QUICK:-}" ]; then
    set -- --quick
else
    set -- --repeat "${REPETITIONS:-3}"
fi
[ -z "${BEFORE:-}" ] || set -- "$@" --before "$BEFORE"
[ -z "${AFTER:-}" ] || set -- "$@" --after "$AFTER"
"$nacre" bench balance --share "${SHARE:-20}" --durability "${DURABILITY:-volatile}" --out "$here" --results "$here/balance.json" "$@" \
    >"$here/balance.txt"
cat "$here/balance.txt"
