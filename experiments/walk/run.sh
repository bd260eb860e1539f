#!/bin/sh
# Measures and simulates everything that this folder shows, and puts results and figures beside this file.
#
#   experiments/walk/run.sh [path of the nacre program]
#   ONLY=measured experiments/walk/run.sh …    on a quiet machine
#   ONLY=simulated experiments/walk/run.sh …   on any machine
#
# QUICK=1 takes a tenth of everything, for a first look. MPIRUN is the launcher of the MPI library that nacre-mpi was built with
# (`make mpi`), NACRE_MPI the program if it is not where `make mpi` puts it; DWALK and PDU name those peers, if they are there
# (DWALK="mpirun -n 2 dwalk"). The trees are made in TMPDIR, and removed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
nacre=${1:-nacre}
only=${ONLY:-measured simulated}
quick=
if [ -n "${QUICK:-}" ]; then quick=--quick; fi

# study NAME FLAG…: a table in NAME.txt, raw results in NAME.json.
study() {
    name=$1
    shift
    "$nacre" bench walk $quick --results "$here/$name.json" "$@" >"$here/$name.txt"
    cat "$here/$name.txt"
}

case $only in *measured*)
    trees=$(mktemp -d)
    trap 'rm -rf "$trees"' EXIT
    set -- --mpirun "${MPIRUN:-mpirun}" --at "$trees/tree" --keep
    if [ -n "${NACRE_MPI:-}" ]; then set -- "$@" --nacre-mpi "$NACRE_MPI"; fi

    # The paper's figures, as far as one machine goes: MPI jobs of 2 to 8 ranks.
    study figures-measured --figure all --source measured --out "$here" "$@"

    # What Nacre is meant to reach: beside the floor and the peers, with four ranks, idle, and in the simulation.
    if [ -n "${DWALK:-}" ]; then set -- "$@" --dwalk "$DWALK"; fi
    if [ -n "${PDU:-}" ]; then set -- "$@" --pdu "$PDU"; fi
    study targets "$@"
esac

case $only in *simulated*)
    # The paper's figures at the paper's size.
    study figures-simulated --figure all --source simulated --out "$here"

    # CP beside the others under other assumptions, and all of the paper's machine.
    study comparison --compare --out "$here"
esac
