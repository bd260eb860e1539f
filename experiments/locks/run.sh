#!/bin/sh
# Measures and simulates everything that this folder shows, and puts results and figures beside this file.
#
#   experiments/locks/run.sh [path of the nacre program]
#   ONLY=measured experiments/locks/run.sh …    six minutes, on a quiet machine
#   ONLY=simulated experiments/locks/run.sh …   a few minutes, on any machine
#
# STUDIES="targets 4 6 5 7" are the parts of what is measured, each of which takes a minute or two.
# QUICK=1 takes an eighth of the regions, for a first look. PAIRS and CONTENDED are the numbers of clients, and of as many
# servers, without contention and with it: 1, 2 and 4, and 4, where the paper has 1 to 32, and 32, on as many nodes.
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
    "$nacre" bench locks $quick --out "$here" --results "$here/$name.json" "$@" >"$here/$name.txt"
    cat "$here/$name.txt"
}

case $only in *measured*)
    set -- --bound 500ms --pairs "${PAIRS:-1,2,4}" --contended "${CONTENDED:-4}"
    for part in ${STUDIES:-targets 4 6 5 7}; do
        case $part in
            # What Nacre is meant to reach, beside the kernel's locks, ZooKeeper and etcd.
            targets) study targets --targets "$@" ;;
            # The paper's figures.
            *) study figure-$part --figure $part "$@" ;;
        esac
    done
esac

case $only in *simulated*)
    # Up to ten thousand clients.
    study simulated --figure simulated
esac
