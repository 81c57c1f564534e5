"""Measure how well `convert --shuffle` mixes the records of large files: correlation and
neighbours, as docs/inputs.md says."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import shardctl

Order = npt.NDArray[np.int64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a folder for scratch, which is emptied")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=200, help="of a record")
    parser.add_argument("--files", type=int, default=4)
    given = parser.parse_args()
    shutil.rmtree(given.folder, ignore_errors=True)
    (given.folder / "in").mkdir(parents=True)
    each = given.records // given.files
    for number in range(given.files):
        with (given.folder / "in" / f"{number}.jsonl").open("w") as file:
            for n in range(number * each, (number + 1) * each):
                file.write(f'{{"n": {n}, "s": "{n:0{max(1, given.bytes - 24)}}"}}\n')
    print(
        json.dumps(
            {"stored": measured(given.folder, None), "shuffled": measured(given.folder, 1)},
            indent=2,
        )
    )


def measured(folder: Path, shuffle: int | None) -> dict[str, Any]:
    out = folder / str(shuffle)
    result = shardctl.convert(folder / "in", out, shuffle=shuffle)
    shards = [
        pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        for path in sorted(out.glob("train-*.arrow"))
    ]
    order = np.concatenate([shard["n"].to_numpy() for shard in shards])
    assert len(np.unique(order)) == result.samples
    return {"records": len(order), "shards": result.shards, **facts_of(order)}


def facts_of(order: Order) -> dict[str, float]:
    """Return the correlation of an order with the stored one (0 is ideal), the mean distance of
    neighbours as a share of all records (a third is ideal), the share of records whose next one is
    the next one in the file, or one of its 600 nearest (about 128 KiB), and the share of the files'
    128 KiB stretches that a window of 10,000 records touches, beside the ideal."""
    count = len(order)
    distance = np.abs(np.diff(order))
    near = 600
    stretches = [
        len(np.unique(order[start : start + 10_000] // near))
        for start in range(0, count - 10_000, 10_000)
    ]
    every = count // near
    return {
        "correlation": round(float(np.corrcoef(np.arange(count), order)[0, 1]), 4),
        "distance": round(float(distance.mean()) / count, 4),
        "next": round(float((np.diff(order) == 1).mean()), 6),
        "near": round(float((distance <= near).mean()), 5),
        "near_ideal": round(2 * near / count, 5),
        "stretches_in_10000": round(float(np.mean(stretches)) / every, 3),
        "stretches_ideal": round(1 - (1 - 1 / every) ** 10_000, 3),
    }


if __name__ == "__main__":
    main()
