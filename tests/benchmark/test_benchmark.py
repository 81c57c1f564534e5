"""What `bench` measures. What it says of a consumer is in test_consumers.py."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CROP, examples
from dataset_files import shard_in, shards_in
from hypothesis import given
from hypothesis import strategies as st
from in_this_process import convert

import shardctl
from shardctl.benchmark.measure import Listener, compare
from shardctl.benchmark.measure.comparison import compare_records
from shardctl.benchmark.measure.meters import CpuUse, Latencies, RateSeries
from shardctl.benchmark.options import BenchOptions
from shardctl.errors import DatasetError, InputError, UsageError
from shardctl.system.machine import usable_cores


@pytest.mark.parametrize("shuffle", [False, True, "block"])
def test_a_measurement_counts_what_was_read(raw_dataset, shuffle):
    heard: list[int] = []
    options = {"batch_size": 16, "epochs": 3, "runs": 2, "shuffle": shuffle, "threads": 2}
    result = shardctl.bench(raw_dataset, Listener(samples=heard.append), **options)
    assert (result.samples, result.batches, result.epochs, result.threads) == (360, 24, 6, 2)
    assert sum(heard) == 360
    rate, runs = result.samples_per_s, result.runs
    assert len(runs) == 2
    assert min(runs) <= rate <= max(runs)
    spread = (max(runs) - min(runs)) / rate
    assert result.spread == pytest.approx(spread, rel=0.01, abs=1e-4)
    assert 32 * 32 * 3 < result.mb_per_s * 1e6 / rate < 32 * 32 * 3 + 60
    stored = sum(path.stat().st_size for path in shards_in(raw_dataset)) / 60
    assert result.stored_mb_per_s * 1e6 / rate == pytest.approx(stored, rel=0.1)
    assert 0 < result.batch_ms_p50 <= result.batch_ms_p99
    for milliseconds, run in zip(result.by_run["batch_ms_mean"], runs, strict=True):
        assert milliseconds == pytest.approx(60 / 4 * 1e3 / run, abs=0.001), "4 batches of 60"
    assert {len(each) for name, each in result.by_run.items() if name != "first_batch_s"} == {2}
    assert sum(result.latencies["counts"]) == 24 - 2, "the first batch of a run is no latency"
    assert result.first_batch_s > 0
    assert result.rss_mb > 10
    assert 0 < result.cores_used <= usable_cores() * 1.1
    assert result.shuffle == {False: "in-order", True: "global", "block": "block"}[shuffle]
    assert sum(result.time.values()) == pytest.approx(1, abs=0.01)


def test_a_run_of_one_batch_has_no_time_between_batches(cli, raw_dataset):
    options = "--runs 1 --epochs 1 --batch-size 60".split()
    measured = cli("bench", raw_dataset, *options, "--json").json
    assert (measured["batch_ms_p50"], measured["batch_ms_p99"]) == (None, None)
    assert measured["batch_ms_mean"] > 0
    assert "a run had a single batch" in cli("bench", raw_dataset, *options).out
    val = cli("bench", raw_dataset, *options, "--split", "val", "--json").json
    assert 0 < val["samples"] < measured["samples"] == 60


@pytest.fixture
def cold(
    raw_dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Any, list[int]]]:
    """Measure cold, and return the result and the number of samples at which the page cache was
    dropped."""

    def bench(**options: Any) -> tuple[Any, list[int]]:
        heard: list[int] = []
        dropped: list[int] = []
        for module in ("measure", "measure.throughput", "measure.consumers"):
            monkeypatch.setattr(
                f"shardctl.benchmark.{module}.drop", lambda files: dropped.append(sum(heard))
            )
        result = shardctl.bench(raw_dataset, Listener(samples=heard.append), cold=True, **options)
        assert np.diff([*dropped, sum(heard)]).max() <= 60, "no sample twice without dropping"
        return result, dropped

    return bench


@pytest.mark.parametrize(
    ("options", "samples"), [({}, [0, 60]), ({"epochs": 2}, [0, 60, 120, 180])]
)
def test_every_epoch_of_a_cold_measurement_begins_with_an_empty_page_cache(cold, options, samples):
    result, dropped = cold(runs=2, **options)
    assert dropped == samples
    assert result.samples == samples[-1] + 60
    assert len(result.runs) == 2


def test_a_time_is_kept_and_epochs_are_cold_in_it_too(cold):
    result, dropped = cold(runs=2, seconds=0.2, batch_size=8)
    assert result.seconds >= 0.4
    assert len(dropped) > 2, "60 samples are read many times over in that time"


def test_a_sweep_and_a_function_of_a_cold_measurement_read_cold_data_too(
    cold, tmp_path, monkeypatch
):
    (tmp_path / "cold_step.py").write_text("def take(batch):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("shardctl.benchmark.measure.consumers.OWN_SECONDS", 0.02)
    result, dropped = cold(runs=1, batch_size=8, consumer="cold_step:take", sweep=True)
    # the run; the function alone and fed; two rounds of each setting
    assert len(dropped) == 1 + 2 + 2 * len(result.sweep)


@pytest.mark.thorough
def test_a_cold_measurement_drops_the_dataset_first(raw_dataset, out):
    shutil.copytree(raw_dataset, out)
    result = shardctl.bench(out, cold=True, runs=2)
    assert (result.samples, result.epochs) == (120, 2)
    assert result.page_cache["after_drop"] is not None
    if result.environment["file_system"] not in ("tmpfs", "overlay"):
        assert result.page_cache["after_drop"] < 0.01


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a file system in memory")
def test_a_cache_that_cannot_be_dropped_is_said(cli, raw_dataset):
    held = Path("/dev/shm") / f"shardctl-{raw_dataset.parent.name}"
    try:
        shutil.copytree(raw_dataset, held)
        assert (
            "NOT COLD: 100% of it stayed in the page cache"
            in cli("bench", held, "--cold", "--runs", 1).out
        )
    finally:
        shutil.rmtree(held, ignore_errors=True)


def test_worker_processes_are_part_of_what_is_measured(cli, raw_dataset):
    options = ("--threads", 2, "--batch-size", 8, "--runs", 1, "--epochs", 2)
    measured = cli("bench", raw_dataset, "--processes", 1, *options, "--json").json
    assert (measured["processes"], measured["threads"], measured["samples"]) == (1, 2, 120)
    assert measured["own_mb"] is None or measured["own_mb"] > 0
    refused = cli("bench", raw_dataset, "--processes", 3, *options)
    assert (refused.code, "needs a thread" in refused.err) == (2, True)


def test_an_empty_split_is_refused(photos, tmp_path, out):
    for split in ("train", "val"):
        (tmp_path / "in" / split).mkdir(parents=True)
    shutil.copy(next(photos.rglob("*.jpg")), tmp_path / "in" / "train")
    (tmp_path / "in" / "val" / "bad.jpg").write_bytes(b"bad")
    convert(tmp_path / "in", out)
    with pytest.raises(DatasetError, match="no sample to read in split val"):
        shardctl.bench(out, split="val")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 1, "seconds": 1}, "--epochs and --seconds contradict"),
        ({"epochs": 0}, "epochs must be a whole number from 1 on"),
        ({"runs": 0}, "runs must be"),
        ({"consumer_rate": 0}, "consumer_rate must be a number, over 0"),
        ({"consumer_rate": float("inf")}, "consumer_rate"),
        ({"consumer_rate": 1, "consumer": "resnet50-a100"}, "contradict"),
        ({"gpus": 0, "consumer_rate": 1}, "gpus must be"),
        ({"gpus": 2, "consumer": "a:b"}, "one GPU"),
        ({"device": "cuda", "consumer_rate": 1}, "a device is for"),
        ({"consumer": "a:b", "consumer_timeout": 0}, "consumer_timeout must be"),
        ({"baseline": True, "decode": False}, "--no-decode"),
    ],
)
def test_impossible_measurements_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        BenchOptions(**options).check()


def test_damage_in_the_middle_of_a_measurement_is_named(cli, dataset):
    shard = shard_in(dataset, "train-00003")
    shard.write_bytes(shard.read_bytes()[:-100])
    found = cli("bench", dataset, "--runs", 1)
    assert (found.code, shard.name in found.err) == (3, True)


@pytest.mark.thorough
def test_stages_tell_decoding_from_decompressing(demo, raw_dataset, tmp_path):
    convert(demo / "photos", tmp_path / "jpeg", recipe={"store": "jpeg:90"})
    convert(demo / "lines.jsonl", tmp_path / "zstd", recipe={"compression": "zstd"})
    made = []
    for root in (tmp_path / "jpeg", tmp_path / "zstd", raw_dataset):
        loader = shardctl.open(root).loader(16, shuffle=True, repeat=5, profile=True)
        assert sum(len(batch["key"]) for batch in loader) > 0
        stats = loader.stats()
        made.append(stats.stages)
        assert sum(stats.stages.values()) <= stats.making_s
    jpeg, zstd, raw = made
    assert min(jpeg["decode"], jpeg["gather"], zstd["decompress"]) > 0
    assert zstd["decode"] == raw["decode"] == raw["decompress"] == 0
    unasked = shardctl.open(raw_dataset).loader(16).stats()
    assert unasked.stages == {}


@examples(100)
@given(
    st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=300),
    st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]),
)
def test_percentiles_are_right_to_a_few_percent(seconds, share):
    latencies = Latencies()
    for value in seconds:
        latencies.add(value)
    exact = np.percentile(seconds, share * 100, method="inverted_cdf") * 1e3
    assert latencies.percentile(share) == pytest.approx(exact, rel=0.025)
    assert sum(latencies.histogram()["counts"]) == len(seconds)
    edges = latencies.histogram()["edges_ms"]
    assert edges[0] <= min(seconds) * 1e3 * 1.03
    assert max(seconds) * 1e3 <= edges[-1] * 1.03


@examples(100)
@given(st.lists(st.tuples(st.floats(0, 1e5), st.integers(1, 1000)), max_size=200))
def test_a_rate_over_time_loses_no_sample(arrivals):
    series = RateSeries()
    for seconds, samples in arrivals:
        series.add(seconds, samples)
    points = series.points(1e9)
    width = 2 * points["seconds"][0]
    samples = sum(number for _, number in arrivals)
    assert sum(points["samples_per_s"]) * width == pytest.approx(samples, rel=1e-2, abs=1)
    assert len(points["seconds"]) <= 120
    assert width * 120 > max((seconds for seconds, _ in arrivals), default=0)


BASELINE: dict[str, Any] = {"epochs": 1, "runs": 1, "baseline": True, "batch_size": 16}


def test_the_baseline_runs_the_recipe_on_the_raw_inputs(raw_dataset):
    found = shardctl.bench(raw_dataset, **BASELINE).baseline
    assert found.rejected == 0
    assert found.raw_samples_per_s > 0
    assert found.raw_epoch_s == pytest.approx(60 / found.raw_samples_per_s, rel=0.01, abs=0.001)
    assert found.ratio > 1, "decoding and resizing 60 photos takes longer than copying them"
    assert found.conversion_measured
    assert found.pays_after is not None


def test_a_conversion_pays_for_itself_when_its_time_is_saved():
    for rate, seconds, pays_after in ((100.0, 27.0, 3), (100.0, 27.1, 4), (1000.0, 1.0, None)):
        assert compare(1000, rate, 1000.0, seconds, 0).pays_after == pays_after
    guessed = compare(1000, 100.0, 1000.0, None, 0)
    assert (guessed.conversion_s, guessed.conversion_measured, guessed.pays_after) == (10, False, 2)


@pytest.mark.thorough
def test_a_baseline_counts_a_changed_input_once_and_ends_where_all_have_changed(source, out):
    convert(source, out, recipe=CROP)
    first, *others = sorted(source.rglob("*.*"))
    first.write_bytes(b"changed")
    assert shardctl.bench(out, **BASELINE).baseline.rejected == 1
    for path in others:
        path.write_bytes(b"changed")
    with pytest.raises(InputError, match="have changed or are gone"):
        shardctl.bench(out, **BASELINE)


def test_a_baseline_needs_its_raw_inputs(source, out, tmp_path):
    convert(source, out)
    shutil.rmtree(source)
    shardctl.write(tmp_path / "written", [{"number": 1}])
    for root, said in ((out, "is gone"), (tmp_path / "written", r"by shardctl.write\)")):
        with pytest.raises(InputError, match=said):
            shardctl.bench(root, **BASELINE)


@pytest.mark.thorough
def test_a_baseline_runs_no_code_that_only_the_dataset_names(photos, tmp_path, out, monkeypatch):
    (tmp_path / "marking.py").write_text(
        "def mark(sample):\n    sample['mark'] = 7\n    return sample\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    custom = {"name": "custom", "target": "marking:mark"}
    convert(photos, out, recipe={"transform": [{"name": "resize", "size": "8x8"}, custom]})
    with pytest.raises(UsageError, match=r"add transforms=\['marking:mark'\]"):
        shardctl.bench(out, **BASELINE)
    found = shardctl.bench(out, **BASELINE, transforms=("marking:mark",)).baseline
    assert found.rejected == 0


@pytest.mark.thorough
def test_a_sweep_tries_every_order_and_says_the_best(cli, raw_dataset, monkeypatch):
    monkeypatch.setattr("shardctl.benchmark.measure.SETTING_SECONDS", 0.02)
    options = "--sweep --runs 1 --epochs 1".split()
    shown = cli("bench", raw_dataset, *options)
    assert "best random order: --order " in shown.out
    assert re.search(r'\.loader\(batch_size=\d+, shuffle="\w+", threads=\d+\)', shown.out)
    points = cli("bench", raw_dataset, *options, "--json").json["sweep"]
    assert {point["shuffle"] for point in points} == {"in-order", "global", "window", "block"}
    assert {1, 2} <= {point["threads"] for point in points}
    assert len({point["batch_size"] for point in points}) > 3
    assert all(point["samples_per_s"] > 0 for point in points)


def record(rate: float, spread: float, **others: Any) -> dict[str, Any]:
    values = [rate * (1 - spread / 2), rate, rate * (1 + spread / 2)]
    usual = {
        "samples_per_s": rate,
        "by_run": {"samples_per_s": values},
        "environment": {"cpu": "A", "versions": {"numpy": "1"}},
    }
    return usual | others


def verdicts(before: dict[str, Any], now: dict[str, Any]) -> dict[str, str]:
    changes = compare_records(before, now).changes
    return {change.metric: change.verdict for change in changes}


@pytest.mark.parametrize(
    ("spreads", "loads", "noise", "rates"),
    [
        (
            (0.05, 0.02),
            (0.0, 0.0),
            1.025 / 0.975 * 1.01 / 0.99 - 1,
            {1080: "better", 925: "worse", 1070: "noise", 935: "noise"},
        ),
        (  # what other programs used
            (0.0, 0.0),
            (0.5, 0.25),
            1.0,
            {520: "noise", 1900: "noise", 480: "worse", 2100: "better"},
        ),
        ((0.5, 0.5), (0.6, 0.6), None, {10_000: "better", 100: "worse"}),
    ],
)
def test_a_change_counts_where_it_is_more_than_the_spread_of_both(spreads, loads, noise, rates):
    before = record(1000.0, spreads[0], other_load=loads[0])
    for rate, verdict in rates.items():
        now = record(rate, spreads[1], other_load=loads[1])
        (change,) = compare_records(before, now).changes
        assert change.verdict == verdict
        assert noise is None or change.noise == pytest.approx(noise, abs=1e-4)


def test_each_figure_is_judged_by_its_own_spread():
    """Of the median time between batches none: most batches of a group are there at once."""
    steady = record(1000.0, 0.01)["by_run"]
    before, now = (
        record(
            1000.0,
            0.01,
            batch_ms_p99=values[1],
            batch_ms_p50=values[0],
            by_run=steady | {"batch_ms_p99": values},
        )
        for values in ([9.0, 10.0, 11.0], [10.0, 31.0, 90.0])
    )
    assert verdicts(before, now) == {"samples_per_s": "noise", "batch_ms_p99": "noise"}
    changes = compare_records(before, now).changes
    assert changes[1].noise == pytest.approx(11 / 9 * 9 - 1, abs=1e-3)


def test_the_load_of_other_programs_is_what_is_busy_beyond_this_process():
    assert CpuUse(0.5, [0.75, 0.75]).others == pytest.approx(0.5)
    assert CpuUse(2.1, [1.0, 1.0]).others == 0.0
    assert CpuUse(1.0, []).others is None


@pytest.mark.parametrize("values", [[], [1.0, 1.1], [1.0, "x", 1.1], None])
def test_a_figure_of_too_few_values_is_not_judged(values):
    before = record(1000.0, 0.01, rss_mb=100.0)
    now = record(2000.0, 0.01, rss_mb=300.0, by_run={"samples_per_s": values})
    assert verdicts(before, now) == {"samples_per_s": "unjudged", "rss_mb": "unjudged"}


def test_less_latency_is_better_and_another_machine_is_said():
    times = {"batch_ms_mean": [2.0, 2.0, 2.0]}
    before = record(1000.0, 0.01, batch_ms_mean=2.0, by_run=times, threads=2)
    other = {"cpu": "B", "versions": {"numpy": "2"}}
    now = record(1000.0, 0.01, batch_ms_mean=1.0, by_run=times, threads=4, environment=other)
    assert verdicts(before, now) == {"samples_per_s": "unjudged", "batch_ms_mean": "better"}
    said = ("threads: 2, now 4", "cpu: A, now B", "numpy: 1, now 2")
    assert compare_records(before, now).differences == said


def test_two_measurements_are_compared(cli, raw_dataset, tmp_path):
    options = ["--runs", 3, "--epochs", 1]
    old = tmp_path / "old.json"
    old.write_text(cli("bench", raw_dataset, *options, "--json").out)
    shown = cli("bench", raw_dataset, *options, "--threads", 1, "--compare", old)
    assert "compared with the earlier measurement" in shown.out
    assert "not judged: it takes 3 runs or more in both" in shown.out, "memory is measured once"
    compared = cli("bench", raw_dataset, *options, "--compare", old, "--json").json
    assert compared["comparison"]["changes"][0]["metric"] == "samples_per_s"


@pytest.mark.parametrize("content", [b"\xff", b"{}", b'{"samples_per_s": "many"}', b"[" * 100_000])
def test_a_file_that_is_no_measurement_is_refused(cli, raw_dataset, tmp_path, content):
    (tmp_path / "old.json").write_bytes(content)
    refused = cli("bench", raw_dataset, "--compare", tmp_path / "old.json")
    assert (refused.code, "not the output of" in refused.err) == (3, True)


def test_the_record_tells_what_it_was_measured_on(cli, raw_dataset):
    measured = cli("bench", raw_dataset, "--runs", 1, "--epochs", 1, "--json").json
    environment = measured["environment"]
    assert environment["cores"] == usable_cores()
    assert environment["versions"]["shardctl"] == shardctl.__version__
    # its type, or null where no mount point is above the dataset
    assert environment["file_system"] != ""
    assert 0 <= measured["page_cache"]["before"] <= 1
    assert measured["dataset"]["fingerprint"] == shardctl.open(raw_dataset).manifest.fingerprint
    json.dumps(measured, allow_nan=False)


@pytest.mark.thorough
@pytest.mark.parametrize("split", [None, "val"])
def test_a_baseline_reads_the_records_of_files_that_have_many(demo, tmp_path, out, split):
    """The lines of one unit are in both splits: only those of the split that is measured count."""
    lines = tmp_path / "lines.jsonl"
    shutil.copyfile(demo / "lines.jsonl", lines)
    convert(lines, out, split="train=0.6,val=0.4")
    options = BASELINE | {"batch_size": 4, "split": split, "cold": True}
    found = shardctl.bench(out, **options).baseline
    assert (found.raw_samples_per_s > 0, found.rejected) == (True, 0)
    lines.write_text(lines.read_text().replace("demo", "else"))
    with pytest.raises(InputError, match="have changed or are gone"):
        shardctl.bench(out, **options)
