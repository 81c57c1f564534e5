"""Coverage-guided fuzzing of the readers, with atheris (`pip install atheris`): only our named errors may come out.

    python scripts/fuzz_readers.py manifest|shards|files|plan|shard DATASET SCRATCH [options of libFuzzer]

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
    from shardctl.manifest import Manifest
    from shardctl.shard import ShardReader
    from shardctl.stored import StoredDataset
    from shardctl.tables import TABLES, ShardTable


def read_shard(path: Path) -> None:
    reader = ShardReader(path)
    for number, block in enumerate(reader.blocks()):
        block.slice(0, 2).to_pylist()
        reader.block_is_intact(number)


def read_files(path: Path) -> None:
    stored = StoredDataset(path.parent)
    for number in range(min(1000, stored.files.num_rows)):
        stored.file(number)
    stored.find("some.txt#3")


def read_units(path: Path) -> None:
    stored = StoredDataset(path.parent)
    for shard in range(len(stored.shards)):
        units = stored.units(shard)
        units.of_row(0)


READERS = {
    "manifest": ("manifest.json", lambda path: Manifest.load(path.parent)),
    "shards": ("shards.arrow", lambda path: list(ShardTable(path))),
    "files": ("files.arrow", read_files),
    "plan": ("plan.arrow", read_units),
    "shard": ("train-00000.arrow", read_shard),
}


def main() -> None:
    what, dataset, scratch, *options = sys.argv[1:]
    name, read = READERS[what]
    corpus, victim = Path(scratch) / "corpus", Path(scratch) / name
    corpus.mkdir()
    shutil.copy(Path(dataset) / name, corpus)
    for table in ("manifest.json", *TABLES):
        shutil.copy(Path(dataset) / table, scratch)

    def one(data: bytes) -> None:
        victim.write_bytes(data)
        with contextlib.suppress(ShardctlError):
            read(victim)

    atheris.Setup([sys.argv[0], str(corpus), *options], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
