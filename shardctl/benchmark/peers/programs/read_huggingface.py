"""Parquet and Arrow files, as Hugging Face datasets reads them."""

from __future__ import annotations

from typing import Any

import datasets

from .batches import Collate, Reading, Values, has_torch, reading_by_workers, reading_of


def open_reading(options: Values) -> Reading:
    """Open the files: Arrow files are mapped, and Parquet files are copied to Arrow in the scratch
    folder, as users do."""
    datasets.disable_progress_bars()
    files, decode = options["files"], options["decode"]
    if files[0].endswith(".parquet"):
        dataset = datasets.Dataset.from_parquet(files, cache_dir=options["scratch"])
    else:
        dataset = datasets.concatenate_datasets(
            [datasets.Dataset.from_file(file) for file in files]
        )
    if not decode:
        for name, feature in dataset.features.items():
            if isinstance(feature, datasets.Image):
                dataset = dataset.cast_column(name, datasets.Image(decode=False))
    processes = options["processes"] if has_torch() else 0
    collate = Collate(decode, processes)
    size, library = options["batch_size"], f"datasets {datasets.__version__}"
    if processes:
        return reading_by_workers(
            library,
            dataset,
            processes,
            batch_size=size,
            shuffle=options["shuffle"],
            collate_fn=collate,
        )

    def epoch() -> Any:
        order = dataset.shuffle() if options["shuffle"] else dataset
        for start in range(0, len(order), size):
            yield collate([order[place] for place in range(start, min(start + size, len(order)))])

    return reading_of(library, processes, epoch)
