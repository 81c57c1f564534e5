#!/bin/sh
# What `make demo` shows: every command once, on a small dataset that is made on the spot.
set -eu
cd "$(dirname "$0")/.."
rm -rf demo
run() { echo; echo "\$ $*"; "$@"; }

run shardctl demo demo
run shardctl convert demo/photos demo/photos-raw --resize 256 --crop 224 --store raw --split train=0.9,val=0.1 --shuffle 0
run shardctl convert demo/photos demo/photos-source
run shardctl convert demo/texts demo/texts-out
run shardctl convert demo/lines.jsonl demo/lines-out
for dataset in photos-raw photos-source texts-out lines-out; do run shardctl verify demo/$dataset; done
run shardctl inspect demo/photos-raw
run shardctl inspect demo/photos-raw --key dunes/dunes-0000.jpg
run shardctl inspect demo/lines-out --head 3
run shardctl bench demo/photos-raw
run shardctl bench demo/photos-source --batch-size 64
run shardctl bench demo/lines-out --batch-size 64
run shardctl convert demo/lines.jsonl demo/lines-out
echo
echo "made demo/: four datasets, verified, looked into and measured; the last conversion found its work done already"
