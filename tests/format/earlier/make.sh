#!/bin/sh
# Write COMMIT.tar.xz beside this script: datasets as an earlier commit of shardctl made them, and their sources.
#     sh tests/format/earlier/make.sh COMMIT        with the environment of the tests on the path
set -eu
here=$(cd "$(dirname "$0")" && pwd)
commit=$(git -C "$here" rev-parse --short=8 "$1")
work=$(mktemp -d)
trap 'git -C "$here" worktree remove --force "$work/code"; rm -rf "$work"' EXIT
git -C "$here" worktree add -q --detach "$work/code" "$commit"
mkdir -p "$work/all/sources"
cd "$work/all/sources"
python - <<'END'
import json
from pathlib import Path

from PIL import Image

for number in range(6):
    file = Path("photos", ("cats", "dogs")[number % 2], f"{number}.png")
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.linear_gradient("L").resize((20, 16)).rotate(60 * number).convert("RGB").save(file)
Path("texts").mkdir()
for number in range(4):
    Path("texts", f"{number}.txt").write_text(f"This is text number {number}.\n" * (number + 1))
lines = [json.dumps({"text": f"line {number}", "id": number, "score": number / 4}) for number in range(8)]
Path("lines.jsonl").write_text("\n".join(lines) + "\n")
END
cd "$work/code"
shardctl() { python -m shardctl "$@" >"$work/log" 2>&1 || { echo "cannot: $*" >&2; tail -n 3 "$work/log" >&2; rm -rf "$work/all/failed"; }; }
in=$work/all/sources out=$work/all
shardctl convert "$in/photos" "$out/raw" --crop 16 --store raw --split train=0.5,val=0.5 --shuffle 1 --workers 1
shardctl convert "$in/photos" "$out/source" --workers 1
shardctl convert "$in/photos" "$out/jpeg" --crop 16 --store jpeg:90 --workers 1
shardctl convert "$in/texts" "$out/texts" --workers 1
shardctl convert "$in/lines.jsonl" "$out/lines" --workers 1
if python -m shardctl convert --help | grep -q -e --tokenizer; then
    shardctl convert "$in/lines.jsonl" "$out/tokens" --tokenizer bytes --block-length 16 --workers 1
fi
rm -rf "$out"/*/.shardctl
tar -C "$work" -cf - all | xz -9e >"$here/$commit.tar.xz"
ls -l "$here/$commit.tar.xz"
