#!/bin/sh
# Measures everything that this folder shows, and puts results and figures beside this file. Two minutes on a quiet machine;
# QUICK=1 measures each point once and for 200 ms, for a first look.
#
#   experiments/sequencer/run.sh [path of the nacre program]
#
# WINDOW and REPETITIONS are the time that each point is measured for, and how often: 2s and 3. DURABILITY says where the servers
# keep their objects: volatile, or always for the disk.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
nacre=${1:-nacre}
if [ -n "${QUICK:-}" ]; then
    set -- --quick --durability "${DURABILITY:-volatile}"
else
    set -- --window "${WINDOW:-2s}" --repeat "${REPETITIONS:-3}" --durability "${DURABILITY:-volatile}"
fi
"$nacre" bench sequencer --out "$here" --results "$here/sequencer.json" "$@" >"$here/sequencer.txt"
cat "$here/sequencer.txt"
