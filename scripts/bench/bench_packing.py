"""How fast documents are packed into blocks, and how full: for a million documents of several kinds
of lengths.

    .venv/bin/python scripts/bench/bench_packing.py [--documents 1000000] [--length 2048] [--runs 5]

The lengths are drawn from a seed; times are the median of the processor time of one thread. Padding
is in percent of all places in blocks, beside the least there can be
(shardctl.format.packing.fewest_blocks).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
from harness import in_turn, medians_of, options_of

from shardctl.format.arrays import Numbers
from shardctl.format.packing import best_fit, concat, fewest_blocks, windows


def main() -> None:
    options = options_of(__doc__, documents=1_000_000, length=2048, runs=5).parse_args()
    length = options.length
    for name, lengths in kinds(options.documents).items():

        def least(lengths: Numbers = lengths) -> int:
            cut = windows(lengths, length)
            return fewest_blocks(np.bincount(cut.length, minlength=length + 1), length)

        calls = {
            "concat": partial(concat, lengths, length),
            "bfd": partial(best_fit, lengths, length),
            "bound": least,
        }
        found = in_turn({what: partial(busy, call) for what, call in calls.items()}, options.runs)
        places = [length * count for count in (best_fit(lengths, length).blocks, least())]
        padding, bound = (100 * (1 - int(lengths.sum()) / each) for each in places)
        shown = ", ".join(f"{what} {took:.3f} s" for what, took in medians_of(found).items())
        print(f"{name}: padding {padding:.4f} %, at least {bound:.4f} %; {shown}", flush=True)


def busy(what: Callable[[], object]) -> float:
    """Return the processor time of a call."""
    began = time.process_time()
    what()
    return time.process_time() - began


def kinds(documents: int) -> dict[str, Numbers]:
    """Return the lengths of documents with a token that ends them, by what they are like."""
    generator = np.random.default_rng(0)
    drawn = {
        "web pages": generator.lognormal(np.log(400), 1.1, documents),
        "lines": generator.lognormal(np.log(35), 0.8, documents),
        "long": generator.lognormal(np.log(1500), 0.9, documents),
        "1,025 to 1,400": generator.integers(1024, 1400, documents),
    }
    return {name: np.maximum(1, lengths).astype(np.int64) + 1 for name, lengths in drawn.items()}


if __name__ == "__main__":
    main()
