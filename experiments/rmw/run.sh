#!/bin/sh
# Measures everything that this folder shows, on this machine, and puts the results and the figures beside this file.
# Takes about an hour on two processors; QUICK=1 takes a few minutes and is good for a first look only.
#
#   experiments/rmw/run.sh [path of the nacre program]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
nacre=${1:-nacre}
scale=--full
if [ -n "${QUICK:-}" ]; then scale=--quick; fi

# What Nacre is meant to reach, beside Redis, ZooKeeper and fio.
"$nacre" bench rmw --targets $scale --results "$here/targets.json" | tee "$here/targets.txt"

# One server, 16 and 256 concurrent updates of fresh blocks, with every peer.
for concurrency in 16 256; do
    "$nacre" bench rmw $scale --peers all --concurrency $concurrency \
        --results "$here/peers-$concurrency.json" | tee "$here/peers-$concurrency.txt"
done

# 16 concurrent updates of one block, with every peer; then by the paper's protocol without pacing.
"$nacre" bench rmw $scale --peers all --blocks 1 \
    --results "$here/one-block.json" | tee "$here/one-block.txt"
"$nacre" bench rmw $scale --system optimistic --blocks 1 --no-pacing --propose --reread \
    --results "$here/one-block-paper.json" | tee "$here/one-block-paper.txt"

# The paper's figures.
"$nacre" bench rmw $scale --figure all --out "$here" --results "$here/figures.json" | tee "$here/figures.txt"
