#!/bin/sh
# Measures everything that this folder shows, and puts results and figures beside this file. Some minutes on two processors;
# QUICK=1 takes less than one and is good for a first look only.
#
#   experiments/class/run.sh [path of the nacre program]
#
# WINDOW and REPETITIONS are the time that each point is measured for, and how often: 2s and 3. POOL is the uri of a pool of Ceph in
# which cls_lua is measured too; the study leaves its objects there. FOLDER is where servers and peers keep their files.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
nacre=${1:-nacre}
if [ -n "${QUICK:-}" ]; then
    set -- --quick
else
    set -- --window "${WINDOW:-2s}" --repeat "${REPETITIONS:-3}"
fi
[ -z "${FOLDER:-}" ] || set -- "$@" --folder "$FOLDER"
[ -z "${POOL:-}" ] || set -- "$@" --store "$POOL"
"$nacre" bench class --out "$here" --results "$here/class.json" "$@" >"$here/class.txt"
cat "$here/class.txt"
