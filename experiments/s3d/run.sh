#!/bin/sh
# Measures everything that this folder shows, on this machine, and puts results and figures beside this file. QUICK=1 writes a small
# checkpoint once with each system, for a first look.
#
#   experiments/s3d/run.sh [path of the nacre program]
#
# RANKS and EDGES are the numbers of ranks and of the grid's points in each direction: 1,2,4,8 and 100,210, where the paper goes to 64 ranks.
# FOLDER is where the checkpoints are written, which takes 1.2 GB: the folder for temporary files by default. Nacre's library is measured
# with each MPI library that it was built for: make mpi MPICC=mpicc.mpich, make mpi MPICC=mpicc.openmpi.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
nacre=${1:-nacre}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
common="--folder ${FOLDER:-$scratch}"
if [ -n "${QUICK:-}" ]; then common="$common --quick"; fi
if [ -n "${RANKS:-}" ]; then common="$common --ranks $RANKS"; fi

# study NAME FLAG…: a table in NAME.txt, raw results in NAME.json.
study() {
    name=$1
    shift
    "$nacre" bench s3d $common --results "$here/$name.json" "$@" >"$here/$name.txt"
    cat "$here/$name.txt"
}

# The paper's figures 8 and 9, and what Nacre is meant to reach.
if [ -n "${EDGES:-}" ]; then
    study s3d --edges "$EDGES" --out "$here"
else
    study s3d --out "$here"
fi

# Protocols differ with several lock servers only. The figures are those of one server.
study protocols --mpi mpich --edges 100 --lock-servers 4 --protocols two-phase,one-try,alt-try \
    --systems none-unsieved,posix,list,datatype --out "$scratch"

# Small pieces, by collective and by independent calls.
"$nacre" bench pieces --folder "${FOLDER:-$scratch}" --out "$scratch" --results "$here/pieces.json" ${QUICK:+--quick} >"$here/pieces.txt"
cat "$here/pieces.txt"
