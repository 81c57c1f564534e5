"""Reads exports with Hugging Face datasets, and the archives with webdataset where it is
installed."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any

import datasets
from plain import plain, show

root = Path(sys.argv[1])
found: dict[str, Any] = {}
with tempfile.TemporaryDirectory() as cache:

    def rows(*arguments: Any, **options: Any) -> Any:
        loaded = datasets.load_dataset(*arguments, **options, cache_dir=cache)
        return {str(split): [plain(row) for row in each] for split, each in loaded.items()}

    for name in ("photos", "gaps", "raw", "texts"):
        found[f"parquet {name}"] = rows(str(root / f"parquet-{name}"))
    shards = {
        name: sorted(map(str, (root / name / "data").glob("train-*.arrow")))
        for name in ("photos", "raw")
    }
    found["shards"] = rows("arrow", data_files=shards["photos"])["train"]
    vector = datasets.Sequence(datasets.Value("uint8"), length=6 * 8 * 3)
    kinds = {"key": datasets.Value("string"), "image": vector, "label": datasets.Value("int64")}
    found["vectors"] = rows("arrow", data_files=shards["raw"], features=datasets.Features(kinds))[
        "train"
    ]
    loaded = datasets.load_dataset(str(root / "parquet-photos"), cache_dir=cache)
    found["classes"] = loaded["train"].features["label"].names
    found["files photos"] = rows("imagefolder", data_dir=str(root / "files-photos"))
    for name in ("photos", "raw", "texts"):
        tars = {
            split: sorted(map(str, root.glob(f"webdataset-{name}/{split}-*.tar")))
            for split in ("train", "val", "test")
        }
        tars = {split: each for split, each in tars.items() if each}
        found[f"webdataset {name}"] = rows("webdataset", data_files=tars)

if importlib.util.find_spec("webdataset"):
    import webdataset

    for name in ("photos", "raw", "texts", "gaps"):
        tars = sorted(map(str, root.glob(f"webdataset-{name}/train-*.tar")))
        samples = webdataset.WebDataset(tars, shardshuffle=False).decode("pil")
        found[f"wds {name}"] = [
            plain({k: v for k, v in sample.items() if k not in ("__url__", "__local_path__")})
            for sample in samples
        ]
show(found)
