"""Folders of MDS shards, as MosaicML Streaming reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streaming

from .batches import Collate, Reading, Values, reading_by_workers


def open_reading(options: Values) -> Reading:
    """Open the folders. Compressed shards are decompressed into the scratch folder, as theirs is
    not to be changed."""
    processes = options["processes"]
    folders = sorted({str(Path(file).parent) for file in options["files"]})
    dataset = streaming.StreamingDataset(
        streams=[
            _stream(folder, Path(options["scratch"]) / str(number))
            for number, folder in enumerate(folders)
        ],
        shuffle=options["shuffle"],
        batch_size=options["batch_size"],
    )
    return reading_by_workers(
        f"mosaicml-streaming {streaming.__version__}",
        dataset,
        processes,
        batch_size=options["batch_size"],
        collate_fn=Collate(options["decode"], processes),
    )


def _stream(folder: str, scratch: Path) -> Any:
    index = (Path(folder) / "index.json").read_text(encoding="utf-8")
    if '"pkl"' in index:
        raise ValueError(
            "a column is encoded as pkl, and a pickle can run any code when it is read"
        )
    if '"compression": null' in index:
        return streaming.Stream(local=folder)
    return streaming.Stream(remote=folder, local=str(scratch))
