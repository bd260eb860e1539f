#!/bin/sh
# Measures everything that this folder shows, and puts results and figures beside this file. Some minutes on two processors;
# QUICK=1 takes less than one and is good for a first look only.
#
#   experiments/zlog/run.sh [path of the nacre program]
#
# WINDOW and REPETITIONS are the time that each point is measured for, and how often: 1s and 3. RECOVER is the lengths of the logs
# that are recovered, which are filled before; the longest of them takes the server some hundred megabytes. FOLDER is where servers,
# peers and the disk's own measurement keep their files: on the disk that is to be measured. POOL is the uri of a pool of Ceph for the
# part on Ceph, which is left out without one; the study removes what it writes there.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
nacre=${1:-nacre}
if [ -n "${QUICK:-}" ]; then
    set -- --quick
else
    set -- --window "${WINDOW:-1s}" --repeat "${REPETITIONS:-3}"
    set -- "$@" --recover "${RECOVER:-10000,100000,1000000,10000000}"
fi
[ -z "${FOLDER:-}" ] || set -- "$@" --folder "$FOLDER"
[ -z "${POOL:-}" ] || set -- "$@" --store "$POOL"
"$nacre" bench append --out "$here" --results "$here/append.json" "$@" >"$here/append.txt"
cat "$here/append.txt"
