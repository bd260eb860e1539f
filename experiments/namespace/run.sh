#!/bin/sh
# Measures everything that this folder shows, and puts results and figures beside this file. It mounts, so it needs /dev/fuse, and root or
# the program fusermount3. QUICK=1 measures each point once with few files, for a first look.
#
#   experiments/namespace/run.sh [path of the nacre program]
#
# REPETITIONS, FILES and CLIENTS are how often each point is measured, the files of all clients together, and the numbers of clients: 3,
# 6400 and 1,16,64. FOLDER is where stores and files are kept: on the disk that is to be measured.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
nacre=${1:-nacre}
if [ -n "${QUICK:-}" ]; then
    set -- --quick
else
    set -- --repeat "${REPETITIONS:-3}" --files "${FILES:-6400}" --clients "${CLIENTS:-1,16,64}"
fi
[ -z "${FOLDER:-}" ] || set -- "$@" --folder "$FOLDER"
"$nacre" bench namespace --out "$here" --results "$here/namespace.json" "$@" >"$here/namespace.txt"
cat "$here/namespace.txt"
