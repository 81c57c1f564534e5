"""How fast documents are packed into blocks, and how full: for a million documents of several kinds
of lengths.

    .venv/bin/python scripts/bench/bench_packing.py [--documents 1000000] [--length 2048] [--runs 5]

The lengths are drawn from a seed; times are the median of the processor time of one thread. Padding
is in percent of all places in blocks, beside the least there can be
(shardctl.format.packing.fewest_blocks).
"""

from __future__ import annotations

import statistics
import time

import numpy as np
from harness import options_of

from shardctl.format.arrays import Numbers
from shardctl.format.packing import best_fit, concat, fewest_blocks, windows


def main() -> None:
    parser = options_of(__doc__, runs=5)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--length", type=int, default=2048)
    options = parser.parse_args()
    for name, lengths in kinds(options.documents).items():
        times: dict[str, list[float]] = {"concat": [], "bfd": [], "bound": []}
        for _ in range(options.runs):
            began = time.process_time()
            concat(lengths, options.length)
            times["concat"].append(time.process_time() - began)
            began = time.process_time()
            blocks = best_fit(lengths, options.length).blocks
            times["bfd"].append(time.process_time() - began)
            began = time.process_time()
            cut = windows(lengths, options.length)
            least = fewest_blocks(
                np.bincount(cut.length, minlength=options.length + 1), options.length
            )
            times["bound"].append(time.process_time() - began)
        total = int(lengths.sum())
        padding, bound = (
            100 * (count * options.length - total) / (count * options.length)
            for count in (blocks, least)
        )
        shown = ", ".join(f"{what} {statistics.median(each):.3f} s" for what, each in times.items())
        print(
            f"{name}: {blocks:,} blocks, padding {padding:.4f} %, at least {bound:.4f} %; {shown}",
            flush=True,
        )


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
