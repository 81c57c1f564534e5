"""Coverage-guided fuzzing of the readers, with atheris (`pip install atheris`): only our named errors may come out.

    python scripts/fuzz_readers.py manifest|shards|plan|shard DATASET SCRATCH [options of libFuzzer]

for instance -max_total_time=60 -max_len=65536. SCRATCH is an empty folder; a file of DATASET is what the fuzzer starts from.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["shardctl"]):
    from shardctl.errors import ShardctlError
    from shardctl.manifest import Manifest, ShardTable, open_checked_table
    from shardctl.shard import ShardReader


def read_shard(path: Path) -> None:
    reader = ShardReader(path)
    for number, block in enumerate(reader.blocks()):
        block.slice(0, 2).to_pylist()
        reader.block_is_intact(number)


READERS = {
    "manifest": ("manifest.json", lambda path: Manifest.load(path.parent)),
    "shards": ("shards.arrow", lambda path: list(ShardTable(path))),
    "plan": ("plan.arrow", lambda path: open_checked_table(path).to_pylist()),
    "shard": ("train-00000-of-00016.arrow", read_shard),
}


def main() -> None:
    what, dataset, scratch, *options = sys.argv[1:]
    name, read = READERS[what]
    corpus, victim = Path(scratch) / "corpus", Path(scratch) / name
    corpus.mkdir()
    shutil.copy(Path(dataset) / name, corpus)

    def one(data: bytes) -> None:
        victim.write_bytes(data)
        with contextlib.suppress(ShardctlError):
            read(victim)

    atheris.Setup([sys.argv[0], str(corpus), *options], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
