"""The simulation of large clusters: what must be true of it, and that docs/explanation/scale.md has
what it prints."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import simulate_cluster
from cluster_costs import SOURCES, fixed
from cluster_model import Cluster, Dynamic, Parts, Result, Store, Work, simulate

PAGE = (Path(__file__).parents[2] / "docs" / "explanation" / "scale.md").read_text(encoding="utf-8")

CALM = Cluster(nodes=5, cores=4, start_seconds=0)
"""Nothing goes wrong, and nodes are of use at once."""

EQUAL = Work(1000e6, 1e6, shard_bytes=10_000_000, spread=0)
"""100 shards that take 10 seconds each."""

HARSH = Cluster(
    10,
    4,
    0.3,
    3,
    failure_hours=0.1,
    repair_seconds=50,
    spot_share=0.5,
    spot_hours=0.05,
    spot_seconds=20,
)
UNEVEN = Work(4000e6, 1e6, shard_bytes=10_000_000, spread=0.5)
PLACINGS = [Dynamic(task_seconds=0), Dynamic(task_seconds=0.05), Parts(10), Parts(37), Parts(1)]


def same(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-6)


@pytest.mark.parametrize("placing", [Dynamic(task_seconds=0), Parts(5)])
def test_equal_shards_without_faults_take_the_time_that_can_be_calculated(
    placing: Dynamic | Parts,
) -> None:
    result = simulate(CALM, EQUAL, Store(), placing)
    assert same(result.seconds, 100 / 20 * 10)
    assert same(result.seconds, result.ideal)
    assert same(result.utilisation, 1)
    assert (result.attempts, result.lost, sum(result.deaths.values())) == (100, 0, 0)


def test_a_remainder_of_shards_takes_a_round_of_its_own() -> None:
    work = replace(EQUAL, data=1010e6)
    assert same(simulate(CALM, work, Store(), Dynamic(task_seconds=0)).seconds, 6 * work.seconds())


def test_one_part_of_one_worker_is_the_sum_of_its_shards() -> None:
    one = Cluster(nodes=1, cores=1, start_seconds=7)
    result = simulate(one, UNEVEN, Store(), Parts(1))
    assert same(result.seconds, 7 + result.core_seconds["useful"])
    assert same(result.core_seconds["idle"], 0)


def test_one_part_uses_one_node_however_many_there_are() -> None:
    alone, many = (
        simulate(replace(CALM, nodes=nodes), UNEVEN, Store(), Parts(1)) for nodes in (1, 5)
    )
    assert same(alone.seconds, many.seconds)


@pytest.mark.parametrize("placing", PLACINGS, ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_shard_is_finished_once_and_all_time_is_accounted_for(
    placing: Dynamic | Parts, seed: int
) -> None:
    result = simulate(HARSH, UNEVEN, Store(partitions=1, get_rate=30), placing, seed)
    assert sum(result.deaths.values()) > 0, "nothing went wrong: the test would show nothing"
    assert (result.finished, result.attempts) == (result.shards, result.shards + result.lost)
    by_shards = sum(
        result.core_seconds[cause]
        for cause in ("useful", "network", "store", "slow", "failures", "preemption")
    )
    assert same(by_shards, result.busy)
    assert same(sum(result.core_seconds.values()), result.seconds * HARSH.workers)
    assert min(result.core_seconds.values()) > -1e-6
    assert result.seconds >= result.ideal


@pytest.mark.parametrize("placing", [Dynamic(task_seconds=0), Parts(10)])
def test_more_failures_finish_the_same_work_and_lose_more(placing: Dynamic | Parts) -> None:
    cluster = Cluster(nodes=10, cores=4)
    work = replace(UNEVEN, data=16000e6)
    calm, rare, often = (
        simulate(replace(cluster, failure_hours=hours), work, Store(), placing)
        for hours in (math.inf, 0.2, 0.02)
    )
    assert calm.finished == rare.finished == often.finished == work.shards
    assert same(calm.core_seconds["useful"], often.core_seconds["useful"])
    assert 0 == calm.lost < rare.lost < often.lost
    assert calm.seconds < often.seconds


def test_the_same_seed_gives_the_same_result_and_another_one_another() -> None:
    def of(seed: int) -> Result:
        return simulate(HARSH, UNEVEN, Store(), Dynamic(), seed)

    assert of(3) == of(3)
    assert of(3).seconds != of(4).seconds


def test_slow_nodes_hold_up_a_part_each_but_few_shards() -> None:
    cluster = replace(CALM, slow_share=0.2)
    dynamic, parts = (
        simulate(cluster, EQUAL, Store(), placing)
        for placing in (Dynamic(task_seconds=0), Parts(5))
    )
    assert same(parts.seconds, 3 * 50)
    assert dynamic.seconds <= 50 + 3 * 10


def test_limits_of_the_store_and_of_the_driver_set_the_time() -> None:
    store = Store(partitions=2, get_rate=1, put_rate=math.inf)
    limited = simulate(CALM, EQUAL, store, Dynamic(task_seconds=0))
    assert same(limited.seconds, 100 * EQUAL.gets / 2)
    assert same(limited.peak_gets, 2)
    assert same(limited.refused, 100 * EQUAL.gets + 100 * EQUAL.puts)  # each once
    moving = simulate(CALM, EQUAL, Store(total_rate=4e6), Dynamic(task_seconds=0))
    assert same(moving.seconds, 2 * 1000e6 / 4e6)  # read and written
    assert moving.refused == 0
    slow_driver = simulate(CALM, EQUAL, Store(), Dynamic(task_seconds=2))
    assert 100 * 2 <= slow_driver.seconds + 20 * 2 <= 101 * 2 + 10 + 20 * 2
    assert slow_driver.core_seconds["driver"] > 0
    narrow = simulate(replace(CALM, node_rate=2e6), EQUAL, Store(), Dynamic(task_seconds=0))
    assert same(narrow.seconds, 2 * narrow.ideal)


def test_nodes_that_die_before_a_shard_is_done_are_refused() -> None:
    with pytest.raises(ValueError, match="smaller shards"):
        simulate(replace(CALM, failure_hours=0.001), EQUAL, Store(), Dynamic())


def test_a_commit_grows_with_the_shards_and_larger_shards_make_fewer() -> None:
    small, large = (
        fixed(replace(UNEVEN, data=1e15, shard_bytes=size), SOURCES["tars"], CALM, Store())
        for size in (1 << 27, 1 << 30)
    )
    assert 7 < small.shards / large.shards < 9
    assert small.commit_seconds > large.commit_seconds


@pytest.mark.parametrize("name", ["growth", "limits", "cost"])
def test_the_page_has_the_tables_that_the_script_calculates(name: str) -> None:
    written = re.findall(rf"<!-- {name} -->\n(.*?)\n\n", PAGE, re.DOTALL)
    assert written == ["\n".join(simulate_cluster.TABLES[name]())], (
        "write it anew: scripts/bench/simulate_cluster.py tables"
    )


def test_the_page_has_the_tables_that_take_longer() -> None:
    for name in set(simulate_cluster.TABLES) - {"growth", "limits", "cost"}:
        assert f"<!-- {name} -->\n| " in PAGE


def test_a_run_prints_json_with_what_was_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [
        "simulate_cluster.py",
        "run",
        "--nodes",
        "3",
        "--data",
        "100GB",
        "--placing",
        "parts",
        "--json",
    ]
    monkeypatch.setattr("sys.argv", asked)
    simulate_cluster.main()
    told = json.loads(capsys.readouterr().out)
    assert (
        told["cluster"]["nodes"],
        told["placing"]["parts"],
        told["cluster"]["failure_hours"],
    ) == (3, 3, None)
    assert told["result"]["finished"] == told["result"]["shards"]
