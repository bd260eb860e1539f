#!/bin/sh
# Measures everything that this folder shows, and puts results, figures and the page on capacity beside this file.
#
#   experiments/reflect/run.sh [path of the nacre program]      about ten minutes, as root, on a quiet machine
#
# QUICK=1 measures every cell once for a tenth of a second and overloads for 300,000 copies: two minutes, for a first look.
# SAMPLICATE is the program of the peer, if it is not to be found by its name; without it the peer is left out.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
nacre=${1:-nacre}
set -- --targets --device unlimited,100,1000
if [ -n "${QUICK:-}" ]; then set -- "$@" --quick --copies 300000; fi
if [ -n "${SAMPLICATE:-}" ]; then set -- "$@" --samplicate "$SAMPLICATE"; fi
"$nacre" bench reflect "$@" --out "$here" --results "$here/targets.json" >"$here/targets.txt"
cat "$here/targets.txt"
