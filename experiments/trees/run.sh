#!/bin/sh
# Measures copies, removals and sweeps of file trees, and puts the results beside this file. The machine should be quiet.
#
#   experiments/trees/run.sh [path of the nacre program]
#
# QUICK=1 takes a tenth of everything, for a first look. The trees are made in TMPDIR, and removed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
nacre=${1:-nacre}
quick=
if [ -n "${QUICK:-}" ]; then quick=--quick; fi
"$nacre" bench trees $quick --results "$here/trees.json" >"$here/trees.txt"
cat "$here/trees.txt"
