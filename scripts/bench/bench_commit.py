"""How long the commit of a conversion takes, and how large its tables are, by the number of shards
and of units.

    .venv/bin/python scripts/bench/bench_commit.py [--cases 1000x1 4000x1 500x32] [--json]

A case is SHARDSxUNITS: a folder of SHARDS * UNITS tiny texts is converted with UNITS samples in
each shard, two workers. "commit" is join_markers of shardctl/making/convert/write_tables.py: all
markers are read, the tables and the manifest are written. Listing, building and publishing are not
part of it. The last lines are what a shard and a unit cost, by least squares over the cases.

Each case runs in a process of its own. "grown" is how much the peak of its resident memory has
grown while it committed. scripts/bench/cluster_costs.py has the results, and
extrapolates with them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import done, options_of, save
from processes import high_water

SECONDS, TABLES = (
    "seconds",
    ("files.arrow", "plan.arrow", "shards.arrow", "SHA256SUMS", "update.arrows"),
)


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument(
        "--cases",
        nargs="+",
        default=["1000x1", "4000x1", "500x32", "1000x32"],
        metavar="SHARDSxUNITS",
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*numbers(options.one))))
        return
    found = [in_a_process(case) for case in options.cases]
    costs = fitted(found)
    save(options.json, {"cases": found, "costs": costs})
    print(
        f"{'shards':>8} {'units':>8} {'commit':>9} {'grown':>9} {'markers':>10}  "
        + "  ".join(TABLES)
    )
    for case in found:
        sizes = "  ".join(f"{case[name]:>{len(name)},}" for name in TABLES)
        print(
            f"{case['shards']:>8,} {case['units']:>8,} {case[SECONDS]:>7.2f} s "
            f"{case['grown'] / 1e6:>6.1f} MB"
            f" {case['markers']:>10,}  {sizes}"
        )
    for name, (shard, unit) in costs.items():
        factor, kind = (1e6, "µs") if name == SECONDS else (1, "bytes")
        print(
            f"{name:14} {shard * factor:>8,.0f} {kind} per shard, {unit * factor:>6,.2f} {kind} "
            "per unit"
        )


def numbers(case: str) -> tuple[int, int]:
    """Return the shards of a case, and the units of each."""
    shards, _, units = case.partition("x")
    return int(shards), int(units)


def in_a_process(case: str) -> dict[str, Any]:
    return json.loads(done(sys.executable, __file__, "--one", case))


def measure(shards: int, units: int) -> dict[str, Any]:
    """Convert tiny texts, and return what the commit took and wrote."""
    import shardctl
    from shardctl.format.dataset_folder import dataset_in
    from shardctl.making.convert import write_tables

    found: dict[str, Any] = {"shards": shards, "units": shards * units}
    commit = write_tables.join_markers

    def timed(job: Any, *given: Any) -> Any:
        markers = [path.stat().st_size for path in job.marker_path(0).parent.iterdir()]
        found["markers"] = sum(markers)
        before, began = high_water("self"), time.perf_counter()
        facts = commit(job, *given)
        found[SECONDS] = time.perf_counter() - began
        found["grown"] = high_water("self") - before
        return facts

    write_tables.join_markers = timed  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "texts", Path(folder) / "out"
        source.mkdir()
        for number in range(shards * units):
            (source / f"document-{number:012d}.txt").write_text(f"document {number}\n")
        made = shardctl.convert(
            source, out, recipe={"kind": "text"}, samples_per_shard=units, workers=2
        )
        assert made.shards == shards
        tables = dataset_in(out)
        for name in TABLES:
            found[name] = tables.path(name).stat().st_size
    return found


def fitted(found: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """Return what each figure grows by with a shard and with a unit."""
    per = np.array([[case["shards"], case["units"]] for case in found], float)
    return {
        name: tuple(
            np.linalg.lstsq(per, np.array([case[name] for case in found], float), rcond=None)[
                0
            ].tolist()
        )
        for name in (SECONDS, "markers", *TABLES)
    }


if __name__ == "__main__":
    main()
