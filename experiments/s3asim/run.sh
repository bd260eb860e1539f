#!/bin/sh
# Measures everything that this folder shows, on this machine, and puts results and figures beside this file. QUICK=1 writes less, once with
# each system, for a first look.
#
#   experiments/s3asim/run.sh [path of the nacre program]
#
# RANKS is the numbers of ranks, one of which is the master: 2,4,8, where the paper goes to 64. SEARCH is the time of all searches together:
# 30s. FOLDER is where the results are written: the folder for temporary files by default. Nacre's library is measured with each MPI library
# that it was built for: make mpi MPICC=mpicc.mpich, make mpi MPICC=mpicc.openmpi.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
nacre=${1:-nacre}
set -- --out "$here" --results "$here/s3asim.json"
if [ -n "${QUICK:-}" ]; then set -- "$@" --quick; fi
if [ -n "${RANKS:-}" ]; then set -- "$@" --ranks "$RANKS"; fi
if [ -n "${SEARCH:-}" ]; then set -- "$@" --search "$SEARCH"; fi
if [ -n "${FOLDER:-}" ]; then set -- "$@" --folder "$FOLDER"; fi
"$nacre" bench s3asim "$@" >"$here/s3asim.txt"
cat "$here/s3asim.txt"
