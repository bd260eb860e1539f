#!/bin/sh
# Measures everything that this folder shows, and puts results and figures beside this file. Most of an hour on two processors;
# QUICK=1 takes less than a minute and is good for a first look only.
#
#   experiments/propagate/run.sh [path of the nacre program]
#
# UPDATES and REPETITIONS are the number of updates of each point, and how often each is measured: 1000 and 3. FOLDER is where the
# servers keep their files: on the disk that is to be measured.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
nacre=${1:-nacre}
if [ -n "${QUICK:-}" ]; then
    set -- --quick
else
    set -- --updates "${UPDATES:-1000}" --repeat "${REPETITIONS:-3}"
fi
[ -z "${FOLDER:-}" ] || set -- "$@" --folder "$FOLDER"
"$nacre" bench propagate --out "$here" --results "$here/propagate.json" "$@" >"$here/propagate.txt"
cat "$here/propagate.txt"
