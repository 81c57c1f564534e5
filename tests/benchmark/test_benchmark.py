"""What `bench` measures. What it says of a consumer is in test_consumers.py."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from in_this_process import convert

import shardctl
from shardctl.benchmark.measure import BenchOptions, Listener, compare
from shardctl.benchmark.measure.comparison import compare_records
from shardctl.benchmark.measure.meters import CpuUse, Latencies, RateSeries
from shardctl.errors import DatasetError, InputError, UsageError
from shardctl.system.machine import usable_cores

CROP = {"store": "raw", "transform": [{"name": "resize", "size": 40}, {"name": "crop", "size": 32}]}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardctl.benchmark.measure.throughput.WARM_UP_SECONDS", 0.05)
    monkeypatch.setattr("shardctl.benchmark.measure.BASELINE_SECONDS", 0.5)


@pytest.mark.parametrize("shuffle", [False, True, "block"])
def test_a_measurement_counts_what_was_read(raw_dataset, shuffle):
    heard: list[int] = []
    listener = Listener(samples=heard.append)
    result = shardctl.bench(
        raw_dataset, listener, batch_size=16, epochs=3, runs=2, shuffle=shuffle, threads=2
    )
    assert (result.samples, result.batches, result.epochs, result.threads) == (360, 24, 6, 2)
    assert sum(heard) == 360
    assert len(result.runs) == 2
    assert min(result.runs) <= result.samples_per_s <= max(result.runs)
    assert result.spread == pytest.approx(
        (max(result.runs) - min(result.runs)) / result.samples_per_s, rel=0.01, abs=1e-4
    )
    per_sample = result.mb_per_s * 1e6 / result.samples_per_s
    assert 32 * 32 * 3 < per_sample < 32 * 32 * 3 + 60
    stored = result.stored_mb_per_s * 1e6 / result.samples_per_s
    assert stored == pytest.approx(
        sum(p.stat().st_size for p in raw_dataset.glob("*-0*.arrow")) / 60, rel=0.1
    )
    assert result.batch_ms_p50 is not None
    assert result.batch_ms_p99 is not None
    assert 0 < result.batch_ms_p50 <= result.batch_ms_p99
    for milliseconds, rate in zip(result.by_run["batch_ms_mean"], result.runs, strict=True):
        assert milliseconds == pytest.approx(60 / 4 * 1e3 / rate, abs=0.001), (
            "four batches for 60 samples"
        )
    assert all(
        len(values) == 2 for name, values in result.by_run.items() if name != "first_batch_s"
    )
    assert sum(result.latencies["counts"]) == 24 - 2, "the first batch of a run is no latency"
    assert result.first_batch_s > 0
    assert result.rss_mb > 10
    assert 0 < result.cores_used <= usable_cores() * 1.1
    assert result.shuffle == {False: "in-order", True: "global", "block": "block"}[shuffle]
    assert sum(result.time.values()) == pytest.approx(1, abs=0.01)


def test_a_time_is_kept(raw_dataset):
    result = shardctl.bench(raw_dataset, seconds=0.3, runs=2, batch_size=8)
    assert result.seconds >= 0.6
    assert result.epochs > 2, "60 samples are read many times over in that time"


def test_a_run_of_one_batch_has_no_time_between_batches(cli, raw_dataset):
    options = "--runs 1 --epochs 1 --batch-size 60".split()
    measured = cli("bench", raw_dataset, *options, "--json").json
    assert (measured["batch_ms_p50"], measured["batch_ms_p99"]) == (None, None)
    assert measured["batch_ms_mean"] > 0
    assert "a run had a single batch" in cli("bench", raw_dataset, *options).out


@pytest.mark.parametrize(
    ("options", "samples"), [({}, [0, 60]), ({"epochs": 2}, [0, 60, 120, 180])]
)
def test_every_epoch_of_a_cold_measurement_begins_with_an_empty_page_cache(
    raw_dataset, monkeypatch, options, samples
):
    heard: list[int] = []
    dropped: list[int] = []
    monkeypatch.setattr(
        "shardctl.benchmark.measure.subjects.evict", lambda root: dropped.append(sum(heard))
    )
    result = shardctl.bench(
        raw_dataset, Listener(samples=heard.append), cold=True, runs=2, **options
    )
    assert dropped == samples
    assert result.samples == samples[-1] + 60
    assert len(result.runs) == 2


def test_a_cold_measurement_of_some_seconds_never_reads_a_sample_twice_without_dropping(
    raw_dataset, monkeypatch
):
    heard: list[int] = []
    dropped: list[int] = []
    monkeypatch.setattr(
        "shardctl.benchmark.measure.subjects.evict", lambda root: dropped.append(sum(heard))
    )
    result = shardctl.bench(
        raw_dataset, Listener(samples=heard.append), cold=True, runs=2, seconds=0.2, batch_size=8
    )
    epochs = np.diff([*dropped, result.samples])
    assert 0 < epochs.min() <= epochs.max() <= 60, (
        "never more than one epoch from one dropping to the next"
    )
    assert result.seconds >= 0.4


def test_a_sweep_and_a_function_of_a_cold_measurement_read_cold_data_too(
    raw_dataset, tmp_path, monkeypatch
):
    (tmp_path / "cold_step.py").write_text("def take(batch):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("shardctl.benchmark.measure.consumers.OWN_SECONDS", 0.02)
    heard: list[int] = []
    dropped: list[int] = []
    monkeypatch.setattr(
        "shardctl.benchmark.measure.subjects.evict", lambda root: dropped.append(sum(heard))
    )
    options: dict[str, Any] = {
        "cold": True,
        "runs": 1,
        "batch_size": 8,
        "consumer": "cold_step:take",
        "sweep": True,
    }
    result = shardctl.bench(raw_dataset, Listener(samples=heard.append), **options)
    assert len(dropped) == 1 + 2 + 2 * len(result.sweep), (
        "the run; the function alone and fed; two rounds of each setting"
    )
    assert np.diff([*dropped, sum(heard)]).max() <= 60


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
    assert refused.code == 2
    assert "processes=3 and threads=2: each process needs a thread" in refused.err


def test_a_split_is_read_alone(raw_dataset):
    (val,) = [split for split in shardctl.open(raw_dataset).manifest.splits if split.name == "val"]
    assert shardctl.bench(raw_dataset, split="val", epochs=1, runs=1).samples == val.samples


def test_an_empty_split_is_refused(photos, tmp_path, out):
    (tmp_path / "in" / "train").mkdir(parents=True)
    (tmp_path / "in" / "val").mkdir()
    (tmp_path / "in" / "train" / "good.jpg").write_bytes(next(photos.rglob("*.jpg")).read_bytes())
    (tmp_path / "in" / "val" / "bad.jpg").write_bytes(b"bad")
    convert(tmp_path / "in", out)
    with pytest.raises(DatasetError, match="there is no sample to read in split val"):
        shardctl.bench(out, split="val")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 1, "seconds": 1}, "--epochs and --seconds contradict"),
        ({"epochs": 0}, "nothing to measure in 0 epochs"),
        ({"runs": 0}, "0 runs are impossible"),
        ({"consumer_rate": 0}, "a consumer rate of 0 samples/s is impossible"),
        ({"consumer_rate": float("inf")}, "consumer_rate must be a number; it is inf"),
        (
            {"consumer_rate": 1, "consumer": "resnet50-a100"},
            "--consumer and --consumer-rate contradict",
        ),
        ({"gpus": 0, "consumer_rate": 1}, "0 GPUs are impossible"),
        ({"gpus": 2, "consumer": "a:b"}, "a function stands for one GPU"),
        ({"device": "cuda", "consumer_rate": 1}, "a device is for your own function"),
        ({"consumer": "a:b", "consumer_timeout": 0}, "a consumer timeout of 0 s is impossible"),
        (
            {"baseline": True, "decode": False},
            "cannot be compared with stored bytes; leave out --no-decode",
        ),
        ({"transforms": ("a:b",)}, "add --baseline"),
    ],
)
def test_impossible_measurements_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        BenchOptions(**options).check()


def test_damage_in_the_middle_of_a_measurement_is_named(cli, dataset):
    shard = dataset / "train-00003.arrow"
    shard.write_bytes(shard.read_bytes()[:-100])
    found = cli("bench", dataset, "--runs", 1)
    assert found.code == 3
    assert "train-00003.arrow" in found.err


@pytest.mark.thorough
def test_stages_tell_decoding_from_decompressing(demo, tmp_path):
    made: dict[str, dict[str, float]] = {}
    for name, source, recipe in (
        ("jpeg", demo / "photos", {"store": "jpeg:90"}),
        ("zstd", demo / "lines.jsonl", {"compression": "zstd"}),
        (
            "raw",
            demo / "photos",
            {"store": "raw", "transform": [{"name": "resize", "size": "40x40"}]},
        ),
    ):
        convert(source, tmp_path / name, recipe=recipe)
        loader = shardctl.open(tmp_path / name).loader(16, shuffle=True, repeat=5, profile=True)
        assert sum(len(batch["key"]) for batch in loader) > 0
        stats = loader.stats()
        made[name] = stats.stages
        assert sum(stats.stages.values()) <= stats.making_s
    assert min(made["jpeg"]["decode"], made["jpeg"]["gather"]) > 0
    assert made["zstd"]["decompress"] > 0
    assert made["zstd"]["decode"] == made["raw"]["decode"] == made["raw"]["decompress"] == 0
    assert shardctl.open(tmp_path / "raw").loader(16).stats().stages == {}, (
        "not measured unless asked for"
    )


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
    end = max((seconds for seconds, _ in arrivals), default=0.0)
    points = series.points(1e9)
    width = 2 * points["seconds"][0]
    assert sum(rate * width for rate in points["samples_per_s"]) == pytest.approx(
        sum(n for _, n in arrivals), rel=1e-2, abs=1
    )
    assert len(points["seconds"]) <= 120
    assert width * 120 > end


def test_the_baseline_runs_the_recipe_on_the_raw_inputs(raw_dataset):
    found = shardctl.bench(
        raw_dataset, epochs=1, runs=1, seconds=None, baseline=True, batch_size=16
    ).baseline
    assert found is not None
    assert found.rejected == 0
    assert found.raw_samples_per_s > 0
    assert found.raw_epoch_s == pytest.approx(60 / found.raw_samples_per_s, rel=0.01, abs=0.001)
    assert found.ratio > 1, "decoding and resizing 60 photos takes longer than copying them"
    assert found.conversion_measured
    assert found.pays_after is not None


def test_a_conversion_pays_for_itself_when_its_time_is_saved():
    assert compare(1000, 100.0, 1000.0, 27.0, 0).pays_after == 3
    assert compare(1000, 100.0, 1000.0, 27.1, 0).pays_after == 4
    guessed = compare(1000, 100.0, 1000.0, None, 0)
    assert (guessed.conversion_s, guessed.conversion_measured, guessed.pays_after) == (
        10.0,
        False,
        2,
    )
    assert compare(1000, 1000.0, 1000.0, 1.0, 0).pays_after is None


@pytest.mark.thorough
def test_a_baseline_counts_a_changed_input_once_and_ends_where_all_have_changed(
    photos, tmp_path, out
):
    shutil.copytree(photos, tmp_path / "in")
    convert(tmp_path / "in", out, recipe=CROP)
    options: dict[str, Any] = {"epochs": 1, "runs": 1, "baseline": True, "batch_size": 16}
    first, *others = sorted((tmp_path / "in").rglob("*.*"))
    first.write_bytes(b"changed")
    found = shardctl.bench(out, **options).baseline
    assert found is not None
    assert found.rejected == 1
    for path in others:
        path.write_bytes(b"changed")
    with pytest.raises(InputError, match=r"all its raw inputs, .*, have changed or are gone"):
        shardctl.bench(out, **options)


def test_a_baseline_needs_its_raw_inputs(photos, tmp_path, out):
    shutil.copytree(photos, tmp_path / "in")
    convert(tmp_path / "in", out)
    shutil.rmtree(tmp_path / "in")
    with pytest.raises(InputError, match="is gone, and baseline=True reads the raw inputs"):
        shardctl.bench(out, epochs=1, runs=1, baseline=True)


def test_a_baseline_runs_no_code_that_only_the_dataset_names(photos, tmp_path, out, monkeypatch):
    (tmp_path / "marking.py").write_text(
        "def mark(sample):\n    sample['mark'] = 7\n    return sample\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    recipe = {
        "store": "raw",
        "transform": [
            {"name": "resize", "size": "8x8"},
            {"name": "custom", "target": "marking:mark"},
        ],
    }
    convert(photos, out, recipe=recipe)
    options: dict[str, Any] = {"epochs": 1, "runs": 1, "baseline": True}
    with pytest.raises(
        UsageError,
        match=r"a baseline runs if named: .* add "
        r"transforms=\['marking:mark'\]",
    ):
        shardctl.bench(out, **options)
    found = shardctl.bench(out, **options, transforms=("marking:mark",)).baseline
    assert found is not None
    assert found.rejected == 0


@pytest.mark.thorough
def test_a_sweep_tries_every_order_and_says_the_best(cli, raw_dataset, monkeypatch):
    monkeypatch.setattr("shardctl.benchmark.measure.SETTING_SECONDS", 0.02)
    shown = cli("bench", raw_dataset, "--sweep", "--runs", 1, "--epochs", 1)
    assert "best random order: --order " in shown.out
    assert re.search(
        r'in Python: dataset\.loader\(batch_size=\d+, shuffle="(global|window|block)", '
        r"threads=\d+\)",
        shown.out,
    )
    points = cli("bench", raw_dataset, *"--sweep --runs 1 --epochs 1 --json".split()).json["sweep"]
    assert {point["shuffle"] for point in points} == {"in-order", "global", "window", "block"}
    assert {1, 2} <= {point["threads"] for point in points}
    assert len({point["batch_size"] for point in points}) > 3
    assert all(point["samples_per_s"] > 0 for point in points)


def record(rate: float, spread: float, **others: Any) -> dict[str, Any]:
    values = [rate * (1 - spread / 2), rate, rate * (1 + spread / 2)]
    environment = {"cpu": "A", "versions": {"numpy": "1"}}
    return {
        "samples_per_s": rate,
        "by_run": {"samples_per_s": values},
        "environment": environment,
    } | others


@pytest.mark.parametrize(
    ("now", "verdict"), [(1080.0, "better"), (925.0, "worse"), (1070.0, "noise"), (935.0, "noise")]
)
def test_a_change_counts_where_it_is_more_than_the_spread_of_both(now, verdict):
    (change,) = compare_records(record(1000.0, 0.05), record(now, 0.02)).changes
    assert (change.verdict, change.noise) == (
        verdict,
        pytest.approx(1.025 / 0.975 * 1.01 / 0.99 - 1, abs=1e-4),
    )


def test_each_figure_is_judged_by_its_own_spread():
    quiet, noisy = {"batch_ms_p99": [9.0, 10.0, 11.0]}, {"batch_ms_p99": [10.0, 31.0, 90.0]}
    steady = record(1000.0, 0.01)["by_run"]
    found = compare_records(
        record(1000.0, 0.01, batch_ms_p99=10.0, by_run=steady | quiet),
        record(1000.0, 0.01, batch_ms_p99=31.0, by_run=steady | noisy),
    )
    assert [(change.metric, change.verdict) for change in found.changes] == [
        ("samples_per_s", "noise"),
        ("batch_ms_p99", "noise"),
    ], "+210 %, but the runs differ by more than that"
    assert found.changes[1].noise == pytest.approx(11 / 9 * 9 - 1, abs=1e-3)


@pytest.mark.parametrize(
    ("now", "verdict"), [(520.0, "noise"), (1900.0, "noise"), (480.0, "worse"), (2100.0, "better")]
)
def test_what_other_programs_used_counts_as_noise(now, verdict):
    (change,) = compare_records(
        record(1000.0, 0.0, other_load=0.5), record(now, 0.0, other_load=0.25)
    ).changes
    assert (change.verdict, change.noise) == (verdict, pytest.approx(1.0))


def test_a_change_of_ten_times_is_seen_on_a_busy_machine_too():
    busy = record(1000.0, 0.5, other_load=0.6), record(10_000.0, 0.5, other_load=0.6)
    assert compare_records(*busy).changes[0].verdict == "better"
    assert compare_records(*reversed(busy)).changes[0].verdict == "worse"


def test_the_load_of_other_programs_is_what_is_busy_beyond_this_process():
    assert CpuUse(0.5, [0.75, 0.75]).others == pytest.approx(0.5)
    assert CpuUse(2.1, [1.0, 1.0]).others == 0.0
    assert CpuUse(1.0, []).others is None


@pytest.mark.parametrize("values", [[], [1.0, 1.1], [1.0, "x", 1.1], None])
def test_a_figure_of_too_few_values_is_not_judged(values):
    changes = compare_records(
        record(1000.0, 0.01, rss_mb=100.0),
        record(2000.0, 0.01, rss_mb=300.0, by_run={"samples_per_s": values}),
    ).changes
    assert [(change.metric, change.noise, change.verdict) for change in changes] == [
        ("samples_per_s", None, "unjudged"),
        ("rss_mb", None, "unjudged"),
    ]


def test_the_median_time_between_batches_is_not_compared():
    """Most batches of a group are there at once: half of the times are microseconds, and double by
    chance."""
    before, now = record(1000.0, 0.01, batch_ms_p50=0.004), record(1000.0, 0.01, batch_ms_p50=0.012)
    assert [change.metric for change in compare_records(before, now).changes] == ["samples_per_s"]


def test_less_latency_is_better_and_another_machine_is_said():
    times = {"batch_ms_mean": [2.0, 2.0, 2.0]}
    before = record(1000.0, 0.01, batch_ms_mean=2.0, by_run=times, threads=2, decode=True)
    now = record(1000.0, 0.01, batch_ms_mean=1.0, by_run=times, threads=4, decode=False)
    now["environment"] = {"cpu": "B", "versions": {"numpy": "2"}}
    found = compare_records(before, now)
    assert [(change.metric, change.verdict) for change in found.changes] == [
        ("samples_per_s", "unjudged"),
        ("batch_ms_mean", "better"),
    ]
    assert found.differences == (
        "threads: 2, now 4",
        "decode: True, now False",
        "cpu: A, now B",
        "numpy: 1, now 2",
    )


def test_two_measurements_are_compared(cli, raw_dataset, tmp_path):
    options = ["--runs", 3, "--epochs", 1]
    (tmp_path / "old.json").write_text(cli("bench", raw_dataset, *options, "--json").out)
    shown = cli("bench", raw_dataset, *options, "--threads", 1, "--compare", tmp_path / "old.json")
    assert "compared with the earlier measurement" in shown.out
    assert "not judged: it takes 3 runs or more in both" in shown.out, "memory is measured once"
    compared = cli(
        "bench", raw_dataset, *options, "--compare", tmp_path / "old.json", "--json"
    ).json
    assert compared["comparison"]["changes"][0]["metric"] == "samples_per_s"


@pytest.mark.parametrize("content", [b"\xff", b"{}", b'{"samples_per_s": "many"}', b"[" * 100_000])
def test_a_file_that_is_no_measurement_is_refused(cli, raw_dataset, tmp_path, content):
    (tmp_path / "old.json").write_bytes(content)
    refused = cli("bench", raw_dataset, "--compare", tmp_path / "old.json")
    assert refused.code == 3
    assert "not the output of `shardctl bench --json`" in refused.err


def test_the_record_tells_what_it_was_measured_on(cli, raw_dataset):
    measured = cli("bench", raw_dataset, "--runs", 1, "--epochs", 1, "--json").json
    environment = measured["environment"]
    assert environment["cores"] == usable_cores()
    assert environment["versions"]["shardctl"] == shardctl.__version__
    assert environment["file_system"] != "", (
        "its type, or null where no mount point is above the dataset"
    )
    assert 0 <= measured["page_cache"]["before"] <= 1
    assert measured["dataset"]["fingerprint"] == shardctl.open(raw_dataset).manifest.fingerprint
    json.dumps(measured, allow_nan=False)


@pytest.mark.thorough
@pytest.mark.parametrize("split", [None, "val"])
def test_a_baseline_reads_the_records_of_files_that_have_many(demo, tmp_path, out, split):
    """The lines of one unit are in both splits: only those of the split that is measured count."""
    shutil.copyfile(demo / "lines.jsonl", tmp_path / "lines.jsonl")
    convert(tmp_path / "lines.jsonl", out, split="train=0.6,val=0.4")
    options: dict[str, Any] = {
        "epochs": 1,
        "runs": 1,
        "baseline": True,
        "batch_size": 4,
        "split": split,
        "cold": True,
    }
    found = shardctl.bench(out, **options).baseline
    assert found is not None
    assert (found.raw_samples_per_s > 0, found.rejected) == (True, 0)
    (tmp_path / "lines.jsonl").write_text(
        (tmp_path / "lines.jsonl").read_text().replace("demo", "else")
    )
    with pytest.raises(InputError, match=r"all its raw inputs, .*, have changed or are gone"):
        shardctl.bench(out, **options)


def test_a_dataset_without_a_source_has_no_baseline(out):
    shardctl.write(out, ({"number": number} for number in range(20)))
    with pytest.raises(
        InputError, match=r"has no raw inputs \(its samples were written by shardctl.write\)"
    ):
        shardctl.bench(out, epochs=1, runs=1, baseline=True)
