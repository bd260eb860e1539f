#!/bin/sh
# Measures everything that this folder shows, on this machine, and puts the results and the figures beside this file.
# Takes about twenty minutes on two processors; QUICK=1 takes a few minutes and is good for a first look only.
#
#   experiments/rmw/run.sh [path of the nacre program]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
nacre=${1:-nacre}
scale="--window ${WINDOW:-1s} --repeat ${REPETITIONS:-5}"
if [ -n "${QUICK:-}" ]; then scale=--quick; fi

# study NAME FLAG…: a table in NAME.txt, raw results in NAME.json.
study() {
    name=$1
    shift
    "$nacre" bench rmw $scale --results "$here/$name.json" "$@" >"$here/$name.txt"
    cat "$here/$name.txt"
}

# What Nacre is meant to reach, beside Redis, ZooKeeper and fio.
study targets --targets

# One server, 16 and 256 concurrent updates of fresh blocks, with every peer.
study peers-16 --peers all --concurrency 16
study peers-256 --peers all --concurrency 256

# 16 concurrent updates of one block, with every peer; then by the paper's protocol without pacing.
study one-block --peers all --blocks 1
study one-block-paper --system optimistic --blocks 1 --no-pacing --propose --reread

# The paper's figures: without contention, and with it.
study figures --figure 2,3 --out "$here"
study contended --figure 4,5 --out "$here"
