"""How long `inspect` takes on a dataset of 10 million samples, 1,000 in each shard, start-up
included.

    python scripts/bench/bench_inspect.py [--samples 10000000] [--runs 7] [--json FILE]

The dataset is made of JSONL by a real conversion, which takes some minutes.
"""

from __future__ import annotations

import sys
from functools import partial

from harness import SHARDCTL, done, in_turn, options_of, save, scratch, seconds, tell


def main() -> None:
    options = options_of(__doc__, samples=10_000_000, runs=7).parse_args()
    with scratch() as folder:
        source, dataset = folder / "lines.jsonl", folder / "out"
        with open(source, "w", encoding="utf-8") as file:
            for n in range(options.samples):
                text = f"sample {n} w{n % 5000} w{n * 7 % 5000}"
                file.write(f'{{"id": {n}, "label": {n % 10}, "text": "{text}"}}\n')
        done(*SHARDCTL, "convert", source, dataset, "--samples-per-shard", 1000)
        inspect = (*SHARDCTL, "inspect", dataset)
        commands = {
            "the imports alone": (sys.executable, "-c", "import numpy, pyarrow, click"),
            "inspect": inspect,
            "--key": (*inspect, "--key", f"lines.jsonl#{options.samples * 3 // 4}"),
        }
        found = in_turn(
            {name: partial(seconds, partial(done, *command)) for name, command in commands.items()},
            options.runs,
        )
    tell(found)
    save(options.json, found)


if __name__ == "__main__":
    main()
