#!/bin/sh
# What `make demo` shows: every command once, on a small dataset that is made on the spot.
set -eu
cd "$(dirname "$0")/.."
rm -rf demo
run() { echo; echo "\$ $*"; "$@"; }

run shardctl demo demo
run shardctl convert demo/photos demo/photos-raw --resize 256 --crop 224 --store raw --split train=0.9,val=0.1 --shuffle 0
run shardctl convert demo/photos demo/photos-source
run shardctl convert demo/scenes demo/scenes-out --labels coco:demo/scenes/instances.json --resize 128x128
run shardctl convert demo/texts demo/texts-out
run shardctl convert demo/lines.jsonl demo/lines-out
run shardctl tokenizer train demo/stories.jsonl demo/tokenizer.json --vocab-size 512
run shardctl convert demo/stories.jsonl demo/blocks --tokenizer demo/tokenizer.json --block-length 128 --pack bfd
for dataset in photos-raw photos-source scenes-out texts-out lines-out blocks; do run shardctl verify demo/$dataset; done
run shardctl inspect demo/photos-raw
run shardctl inspect demo/photos-raw --key dunes/dunes-0000.jpg
run shardctl inspect demo/lines-out --head 3
run shardctl bench demo/photos-raw
run shardctl bench demo/photos-source --batch-size 64
run shardctl bench demo/lines-out --batch-size 64
run shardctl bench demo/blocks --batch-size 16
run shardctl convert demo/lines.jsonl demo/lines-out
echo
echo "made demo/: six datasets, verified, looked into and measured; the last conversion found its work done already"
