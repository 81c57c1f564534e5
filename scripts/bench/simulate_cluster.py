"""Simulate conversions on large clusters, and calculate what they need: the tables of
docs/explanation/scale.md.

    .venv/bin/python scripts/bench/simulate_cluster.py run [--nodes 1000 --cores 32 --data 1PB --recipe clean --shard-size 1GiB]
        [--placing dynamic|parts] [--slow 0.05 --failure-hours 100 --spot 0.5 …] [--json]      one conversion
    .venv/bin/python scripts/bench/simulate_cluster.py tables           every table, as Markdown: about 80 seconds on one core
    .venv/bin/python scripts/bench/simulate_cluster.py tables growth    one of them: scenarios sizes growth limits cost

The simulation is cluster_model.py, the arithmetic cluster_costs.py, which also has what was
measured and what is assumed. The same arguments give the same result.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from cluster_costs import RECIPES, SOURCES, fixed, price, rates
from cluster_model import MIB, Cluster, Dynamic, Parts, Result, Store, Work, simulate

GIB = 1 << 30
FAULTS = Cluster(failure_hours=100, slow_share=0.05, slow_factor=3, spot_share=0.5, spot_hours=2)
"""What goes wrong in the tables: more than is usual, so that it is seen."""

NOTHING = Cluster()
SIZES = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "PB": 10**15,
    "MIB": MIB,
    "GIB": GIB,
    "TIB": 1 << 40,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    tables = commands.add_parser("tables", help="print the tables of docs/explanation/scale.md")
    tables.add_argument("names", nargs="*", metavar="NAME", help=f"which: {' '.join(TABLES)} (all)")
    tables.set_defaults(call=print_tables)
    one = commands.add_parser(
        "run",
        help="simulate one conversion",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_options(one)
    one.set_defaults(call=run)
    given = parser.parse_args()
    if unknown := set(getattr(given, "names", ())) - set(TABLES):
        parser.error(
            f"no table is called {' or '.join(sorted(unknown))}; there are {' '.join(TABLES)}"
        )
    given.call(given)


def add_options(parser: argparse.ArgumentParser) -> None:
    cluster, store, work = Cluster(), Store(), Work(1, 1)
    add = parser.add_argument
    add("--nodes", type=int, default=cluster.nodes)
    add("--cores", type=int, default=cluster.cores, help="of each node")
    add("--data", type=size, default="1PB", help="bytes to read")
    add(
        "--recipe", choices=RECIPES, default="clean", help="whose measured speed and growth to take"
    )
    add("--core-rate", type=size, help="bytes per second of a core, in the place of the recipe's")
    add("--growth", type=float, help="bytes written per byte read, in the place of the recipe's")
    add("--shard-size", type=size, default="1GiB")
    add("--spread", type=float, default=work.spread, help="sigma of the lognormal times of shards")
    add("--get-size", type=size, default="8MiB", help="bytes read by one GET")
    add("--put-size", type=size, default="8MiB", help="bytes written by one PUT")
    add(
        "--placing",
        choices=["dynamic", "parts"],
        default="dynamic",
        help="as Ray places shards, or as a job array",
    )
    add(
        "--detection-seconds",
        type=float,
        default=Dynamic().detection_seconds,
        help="dynamic: until a death is noticed",
    )
    add(
        "--task-seconds",
        type=float,
        default=Dynamic().task_seconds,
        help="dynamic: of the driver, for each task",
    )
    add("--parts", type=int, help="of the job array (one for each node)")
    add(
        "--restart-seconds",
        type=float,
        default=Parts(1).restart_seconds,
        help="parts: until a dead part is started again",
    )
    add("--slow", type=float, default=0.0, help="share of nodes that are slow")
    add("--slow-factor", type=float, default=cluster.slow_factor)
    add("--failure-hours", type=float, default=math.inf, help="mean time until a node fails")
    add(
        "--repair-seconds",
        type=float,
        default=cluster.repair_seconds,
        help="until a failed node is replaced",
    )
    add("--spot", type=float, default=0.0, help="share of nodes that may be taken away")
    add(
        "--spot-hours",
        type=float,
        default=cluster.spot_hours,
        help="mean time until one is taken away",
    )
    add("--spot-seconds", type=float, default=cluster.spot_seconds, help="until it is replaced")
    add(
        "--start-seconds",
        type=float,
        default=cluster.start_seconds,
        help="until a new node or part does its first work",
    )
    add(
        "--node-rate",
        type=size,
        default="3.125GB",
        help="bytes per second of a node's network, each way",
    )
    add("--store-rate", type=size, help="bytes per second of the whole store (no limit)")
    add(
        "--partitions",
        type=int,
        default=store.partitions,
        help="of the store's keys; each has the limits of requests",
    )
    add(
        "--get-limit",
        type=float,
        default=store.get_rate,
        help="GET requests per second of a partition",
    )
    add(
        "--put-limit",
        type=float,
        default=store.put_rate,
        help="PUT requests per second of a partition",
    )
    add(
        "--refusals",
        type=float,
        default=store.refusals,
        help="of each request, while there are too many",
    )
    add("--seed", type=int, default=0)
    add("--json", action="store_true", help="print one JSON object")


def size(text: str) -> float:
    """Return the bytes that a text such as 128MiB or 1.5PB stands for."""
    match = re.fullmatch(r"([0-9.]+) *([a-z]*)", text, re.IGNORECASE)
    unit = SIZES.get((match[2] or "B").upper()) if match else None
    if match is None or unit is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 128MiB or 1PB")
    return float(match[1]) * unit


def run(given: argparse.Namespace) -> None:
    recipe = RECIPES[given.recipe]
    cluster = Cluster(
        given.nodes,
        given.cores,
        given.slow,
        given.slow_factor,
        given.failure_hours,
        given.repair_seconds,
        given.spot,
        given.spot_hours,
        given.spot_seconds,
        given.start_seconds,
        given.node_rate,
    )
    work = Work(
        given.data,
        given.core_rate or recipe.core_rate,
        recipe.growth if given.growth is None else given.growth,
        int(given.shard_size),
        given.spread,
        given.get_size,
        given.put_size,
    )
    total = math.inf if given.store_rate is None else given.store_rate
    store = Store(given.get_limit, given.put_limit, given.partitions, total, given.refusals)
    placing: Dynamic | Parts = Dynamic(given.detection_seconds, given.task_seconds)
    if given.placing == "parts":
        placing = Parts(given.parts or given.nodes, given.restart_seconds)
    try:
        result = simulate(cluster, work, store, placing, given.seed)
    except ValueError as error:
        raise SystemExit(str(error)) from error
    commit = fixed(work, SOURCES["tars"], cluster, store).commit_seconds
    if given.json:
        asked = {
            "cluster": asdict(cluster),
            "work": asdict(work),
            "store": asdict(store),
            "placing": asdict(placing),
        }
        print(
            json.dumps(finite({**asked, "result": {**result.to_json(), "commit_seconds": commit}}))
        )
        return
    hours = {
        cause: f"{seconds / 3600:,.1f}"
        for cause, seconds in result.core_seconds.items()
        if abs(seconds) > 1
    }
    lines = {
        "shards": f"{result.shards:,}, built {result.attempts:,} times, {result.lost:,} lost",
        "time": f"{duration(result.seconds)}, {result.seconds / result.ideal:.2f} of the ideal "
        f"{duration(result.ideal)}",
        "then the commit": f"{duration(commit)} on one machine (extrapolated)",
        "utilisation": f"{result.utilisation:.1%}",
        "core hours": ", ".join(f"{cause} {value}" for cause, value in hours.items()),
        "deaths": ", ".join(f"{cause} {count:,}" for cause, count in result.deaths.items()),
        "requests": f"GET {result.gets:,.0f}, PUT {result.puts:,.0f}, refused "
        f"{result.refused:,.0f}",
        "at most": f"GET {result.peak_gets:,.0f}/s, PUT {result.peak_puts:,.0f}/s",
    }
    for name, text in lines.items():
        print(f"{name:16} {text}")


def finite(value: Any) -> Any:
    """Return plain data with None for what is infinite: JSON has no number for it."""
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    return None if value == math.inf else value


def print_tables(given: argparse.Namespace) -> None:
    for name in given.names or TABLES:
        print(f"<!-- {name} -->")
        print("\n".join(TABLES[name]()))
        print()


def table(head: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> list[str]:
    """Return the lines of a Markdown table; columns after the first `texts` ones are numbers."""
    marks = ["---"] * texts + ["---:"] * (len(head) - texts)
    return [f"| {' | '.join(row)} |" for row in (head, marks, *rows)]


def text_work(data: float, shard_bytes: int) -> Work:
    recipe = RECIPES["clean"]
    return Work(data, recipe.core_rate, recipe.growth, shard_bytes)


def faulty(*names: str) -> Cluster:
    """Return a cluster with some of the faults of FAULTS, by the names of its fields."""
    return replace(NOTHING, **{name: getattr(FAULTS, name) for name in names})


def scenarios() -> list[str]:
    """1 PB of text, cleaned on 1,000 nodes in shards of 512 MiB: what goes wrong, by three ways to
    place shards."""
    work, plenty, hot = text_work(1e15, GIB // 2), Store(), Store(partitions=1)
    failures, slow, spot = (
        ("failure_hours",),
        ("slow_share", "slow_factor"),
        ("spot_share", "spot_hours"),
    )
    cases: dict[str, tuple[Cluster, Store]] = {
        "nothing": (NOTHING, plenty),
        "failures": (faulty(*failures), plenty),
        "slow nodes": (faulty(*slow), plenty),
        "spot machines taken away": (faulty(*spot), plenty),
        "all three": (faulty(*failures, *slow, *spot), plenty),
        "one hot prefix": (NOTHING, hot),
    }
    placings = {"dynamic": Dynamic(), "1,000 parts": Parts(1000), "4,000 parts": Parts(4000)}
    head = [
        "what goes wrong",
        "placing",
        "minutes",
        "of the ideal",
        "utilisation",
        "lost",
        "slow",
        "down",
        "idle",
        "deaths",
    ]
    rows = []
    for name, (cluster, store) in cases.items():
        for placing, how in placings.items():
            result = simulate(cluster, work, store, how)
            rows.append([name, placing, f"{result.seconds / 60:,.0f}", *scenario_row(result)])
    return table(head, rows, texts=2)


def scenario_row(result: Result) -> list[str]:
    spent = {cause: seconds / 3600 for cause, seconds in result.core_seconds.items()}
    lost = spent["failures"] + spent["preemption"]
    causes = (lost, spent["slow"], spent["down"], spent["idle"] + spent["driver"])
    hours = [f"{value:,.0f}" for value in causes]
    return [
        f"{result.seconds / result.ideal:.2f}",
        f"{result.utilisation:.0%}",
        *hours,
        f"{sum(result.deaths.values()):,}",
    ]


def sizes() -> list[str]:
    """100 TB of text on 100 nodes with all faults, by the size of shards."""
    cluster = replace(FAULTS, nodes=100)
    head = [
        "shard size",
        "shards",
        "for each core",
        "dynamic",
        "400 parts",
        "lost, dynamic",
        "PUT",
        "commit",
    ]
    rows = []
    for shard_bytes in (32 * MIB, 64 * MIB, 128 * MIB, 256 * MIB, 512 * MIB, GIB):
        work = text_work(1e14, shard_bytes)
        dynamic, parts = (
            simulate(cluster, work, Store(), placing) for placing in (Dynamic(), Parts(400))
        )
        lost = (dynamic.core_seconds["failures"] + dynamic.core_seconds["preemption"]) / 3600
        needs = fixed(work, SOURCES["lines"], cluster, Store())
        rows.append(
            [
                f"{shard_bytes // MIB:,} MiB",
                f"{work.shards:,}",
                f"{work.shards / cluster.workers:.0f}",
                *(f"{result.seconds / result.ideal:.2f}" for result in (dynamic, parts)),
                f"{lost:,.1f} h",
                amount(dynamic.puts),
                duration(needs.commit_seconds),
            ]
        )
    return table(head, rows)


def growth() -> list[str]:
    """What one machine holds and does, by the data."""
    head = [
        "data",
        "as",
        "files",
        "shards",
        "plan.arrow",
        "files.arrow",
        "shards.arrow",
        "list",
        "read first",
        "commit",
    ]
    rows = []
    for source, recipe in (("loose", "photos"), ("tars", "photos"), ("lines", "lines")):
        for data in (1e12, 1e13, 1e14, 1e15, 1e16):
            work = Work(
                data,
                RECIPES[recipe].core_rate,
                RECIPES[recipe].growth,
                get_bytes=SOURCES[source].get_bytes,
            )
            needs = fixed(work, SOURCES[source], NOTHING, Store())
            rows.append(
                [
                    volume(data),
                    SOURCES[source].name,
                    amount(needs.files),
                    amount(needs.shards),
                    *(
                        volume(each)
                        for each in (needs.plan_table, needs.files_table, needs.shards_table)
                    ),
                    duration(needs.listing_seconds),
                    duration(needs.survey_seconds) if needs.survey_seconds else "-",
                    duration(needs.commit_seconds),
                ]
            )
    return table(head, rows, texts=2)


def limits() -> list[str]:
    """What a cluster asks of the store and of Ray's driver at full speed, by its nodes."""
    head = [
        "nodes",
        "recipe",
        "shard size",
        "read",
        "written",
        "GET/s",
        "PUT/s",
        "partitions",
        "shards/s",
        "Ray's driver",
    ]
    rows = []
    for nodes in (100, 1000, 10_000):
        for recipe, shard_bytes in (
            ("photos", 128 * MIB),
            ("photos", GIB),
            ("clean", 128 * MIB),
            ("clean", GIB),
        ):
            cluster, known = replace(NOTHING, nodes=nodes), RECIPES[recipe]
            asked = rates(Work(1e15, known.core_rate, known.growth, shard_bytes), cluster, Store())
            rows.append(
                [
                    f"{nodes:,}",
                    known.name,
                    f"{shard_bytes // MIB:,} MiB",
                    f"{volume(asked['read'])}/s",
                    f"{volume(asked['written'])}/s",
                    amount(asked["gets"]),
                    amount(asked["puts"]),
                    f"{asked['partitions']:,}",
                    amount(asked["shards"]),
                    f"{asked['driver']:,.0%}",
                ]
            )
    return table(head, rows, texts=2)


def cost() -> list[str]:
    """What 1 PB costs, on 1,000 nodes of 32 cores."""
    head = [
        "1 PB of",
        "converted",
        "shard size",
        "core hours",
        "hours",
        "GET",
        "PUT",
        "machines",
        "requests",
        "a month",
    ]
    cases = (
        ("loose", "photos", 128 * MIB, 8 * MIB),
        ("tars", "photos", 128 * MIB, 8 * MIB),
        ("tars", "photos", GIB, 64 * MIB),
        ("tars", "augment", GIB, 64 * MIB),
        ("lines", "lines", GIB, 64 * MIB),
        ("lines", "clean", GIB, 64 * MIB),
        ("lines", "tokens", GIB, 64 * MIB),
    )
    rows = []
    for source, recipe, shard_bytes, put_bytes in cases:
        known, lies = RECIPES[recipe], SOURCES[source]
        work = Work(
            1e15,
            known.core_rate,
            known.growth,
            shard_bytes,
            get_bytes=lies.get_bytes,
            put_bytes=put_bytes,
        )
        costs = price(work, lies, NOTHING, Store())
        rows.append(
            [
                lies.name,
                known.name,
                f"{shard_bytes // MIB:,} MiB, by {put_bytes // MIB}",
                f"{costs.core_hours:,.0f}",
                f"{costs.hours:.2f}",
                amount(costs.gets),
                amount(costs.puts),
                *(f"${value:,.0f}" for value in (costs.machines, costs.requests, costs.month)),
            ]
        )
    return table(head, rows, texts=3)


def duration(seconds: float) -> str:
    """Return a time with the unit that suits it."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def amount(number: float) -> str:
    """Return a number in short."""
    for unit, factor in (("billion", 1e9), ("million", 1e6)):
        if number >= factor:
            return f"{number / factor:,.1f} {unit}"
    return f"{number:,.0f}"


def volume(size: float) -> str:
    """Return a number of bytes in short."""
    for unit, factor in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= factor:
            return (
                f"{size / factor:,.3g} {unit}"
                if size < 1000 * factor
                else f"{size / factor:,.0f} {unit}"
            )
    return f"{size / 1e3:,.0f} kB"


TABLES: dict[str, Callable[[], list[str]]] = {
    "scenarios": scenarios,
    "sizes": sizes,
    "growth": growth,
    "limits": limits,
    "cost": cost,
}


if __name__ == "__main__":
    main()
