"""Tars, as webdataset reads them."""

from __future__ import annotations

from typing import Any

import webdataset

from .batches import Collate, Reading, Values, has_torch, reading_by_workers, reading_of

SHUFFLED = 1000
"""Samples that the shuffle buffer has, as in the examples of webdataset."""


def open_reading(options: Values) -> Reading:
    """Open the tars: shards and then samples are shuffled, images are decoded, and the workers make
    the batches.

    A worker has tars of its own, so that there are not more workers than tars. Images are decoded
    by Pillow, as by decode("rgb8"), which would also unpickle what is a pickle.
    """
    files, shuffle = options["files"], options["shuffle"]
    processes = min(options["processes"], len(files)) if has_torch() else 0
    pipeline = webdataset.WebDataset(
        files, shardshuffle=len(files) if shuffle else False, empty_check=False
    )
    if shuffle:
        pipeline = pipeline.shuffle(SHUFFLED)
    if options["endless"]:
        pipeline = pipeline.repeat()
    collate = Collate(options["decode"], processes)
    pipeline = pipeline.batched(options["batch_size"], collation_fn=collate, partial=True)
    library = f"webdataset {webdataset.__version__}"
    if not processes:
        return reading_of(library, processes, lambda: pipeline)
    return reading_by_workers(library, pipeline, processes, batch_size=None, collate_fn=_as_it_is)


def _as_it_is(batch: Any) -> Any:
    return batch
