"""Figures of loaders, conversions and measurements, read back as the tools read them for which they
are."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from in_this_process import command_line
from prometheus_client.parser import text_string_to_metric_families
from tensorboardX.proto.event_pb2 import Event

import shardctl
from shardctl.errors import StorageError, UsageError
from shardctl.loader.metrics import LOADER, Family


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def families(text: str) -> dict[str, float]:
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Kept:
    """A target of one's own."""

    def __init__(self) -> None:
        self.values: list[Mapping[str, float]] = []

    def write(self, family: Family, values: Mapping[str, float], step: int) -> None:
        assert family is LOADER
        self.values.append(values)

    def close(self) -> None:
        raise AssertionError("it is the caller's")


def test_the_figures_are_those_of_the_loop(raw_dataset):
    kept = Kept()
    ds = shardctl.open(raw_dataset)
    slow = shardctl.watch(ds.loader(6, shuffle=True, repeat=2), kept, every=0.05)
    assert len(slow) == 10
    for _ in slow:
        time.sleep(0.02)
    assert kept.values[-1]["samples"] == 120
    assert kept.values[-1]["batches"] == 20
    assert {values["epoch"] for values in kept.values} == {0, 1}
    assert len(kept.values) >= 3
    for values in kept.values[1:-1]:
        assert values["stall_share"] + values["utilization"] == pytest.approx(1)
        # of a second: the loop takes 20 ms for 6 samples, or more
        worked = 0.02 * values["samples_per_s"] / 6
        assert worked <= values["utilization"] + 0.001


def test_every_epoch_goes_on_where_the_last_one_ended(raw_dataset):
    kept = Kept()
    watched = shardctl.watch(shardctl.open(raw_dataset).loader(7), kept)
    for epoch in range(3):
        assert sum(len(batch["key"]) for batch in watched) == 60
        assert (kept.values[-1]["samples"], kept.values[-1]["epoch"]) == (60 * (epoch + 1), epoch)
    for _ in watched:
        break
    assert kept.values[-1]["samples"] == 187


def test_prometheus_and_tensorboard_read_what_is_written(raw_dataset, tmp_path):
    text, folder = tmp_path / "a" / "m.prom", tmp_path / "runs"
    loader = shardctl.open(raw_dataset).loader(7)
    for _ in shardctl.watch(loader, tmp_path / "m.jsonl", text, f"tensorboard:{folder}"):
        pass
    (line,) = lines(tmp_path / "m.jsonl")
    assert (line["of"], line["step"], line["samples"]) == ("loader", 9, 60)
    assert abs(line["time"] - time.time()) < 60
    found = families(text.read_text())
    assert found["shardctl_loader_samples_total"] == 60
    assert found["shardctl_loader_samples_per_s"] == line["samples_per_s"]
    assert set(found) == {
        f"shardctl_loader_{name}{'_total' if name in LOADER.counters else ''}"
        for name in LOADER.meanings
        if name in line
    }
    (events,) = folder.iterdir()
    scalars = {
        value.tag: value.simple_value
        for event in events_of(events)
        for value in event.summary.value
    }
    assert scalars["shardctl/loader/samples"] == 60
    assert scalars["shardctl/loader/samples_per_s"] == pytest.approx(line["samples_per_s"])


def events_of(path: Path) -> Iterator[Event]:
    """The events of a file: TFRecord, as TensorBoard reads it."""
    data, place = path.read_bytes(), 0
    while place < len(data):
        size = int.from_bytes(data[place : place + 8], "little")
        yield Event.FromString(data[place + 12 : place + 12 + size])
        place += size + 16


def test_an_endpoint_on_loopback_answers_while_the_epoch_runs(raw_dataset):
    loader = shardctl.open(raw_dataset).loader(20)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        taken.listen()
        with pytest.raises(StorageError, match=f"port {port} of 127.0.0.1 cannot be opened"):
            list(shardctl.watch(loader, f"http:{port}"))
    place = f"http://127.0.0.1:{port}/metrics"
    answers = []
    for _ in shardctl.watch(loader, f"http:{port}", every=1e-9):
        with urllib.request.urlopen(place) as answer:
            answers.append(families(answer.read().decode()).get("shardctl_loader_samples_total"))
    assert answers == [None, 20, 40]
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(place)


class Failing(Kept):
    def write(self, family: Family, values: Mapping[str, float], step: int) -> None:
        raise ValueError("no more of this")


def test_a_target_that_fails_does_not_end_the_job(raw_dataset, tmp_path, capfd):
    (tmp_path / "full.jsonl").symlink_to("/dev/full")
    loader = shardctl.open(raw_dataset).loader(20)
    for target, said in ((tmp_path / "full.jsonl", ""), (Failing(), "ValueError: no more of this")):
        watched = shardctl.watch(loader, target, tmp_path / "m.jsonl", every=1e-9)
        assert sum(len(batch["key"]) for batch in watched) == 60
        assert capfd.readouterr().err.count(f"no more metrics here: {said}") == 1
        assert lines(tmp_path / "m.jsonl")[-1]["samples"] == 60


def test_wrong_targets_are_wrong_usage(raw_dataset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loader: Any = shardctl.open(raw_dataset).loader(20)
    with pytest.raises(UsageError, match="needs a loader of shardctl"):
        shardctl.watch([1, 2], "m.jsonl")
    for targets, options, message in (
        (["metrics.txt"], {}, r"'metrics.txt' is not known"),
        (["http:x"], {}, "needs a port"),
        (["http:99999"], {}, "needs a port"),
        ([], {}, "watch needs a place"),
        (["/nowhere/m.jsonl"], {"every": 0}, "every is a number of seconds over 0"),
        *(([target], {}, "metrics") for target in (3, None, ["m.jsonl"], "tensorboard:")),
    ):
        with pytest.raises(UsageError, match=message):
            list(shardctl.watch(loader, *targets, **options))


def test_a_conversion_tells_how_far_it_is(photos, tmp_path, cli):
    told, families_of = tmp_path / "m.jsonl", tmp_path / "m.prom"
    ran = cli("convert", photos, tmp_path / "out", "--metrics", told, "--metrics", families_of)
    assert ran.code == 0, ran.err
    last = lines(told)[-1]
    figures = [last[name] for name in ("of", "records", "all_records", "samples", "left_s")]
    assert figures == ["conversion", 60, 60, 60, 0]
    assert last["bytes"] == sum(path.stat().st_size for path in photos.rglob("*") if path.is_file())
    assert families(families_of.read_text())["shardctl_conversion_records_total"] == 60
    refused = cli("convert", photos, tmp_path / "other", "--metrics", "m.csv")
    assert (refused.code, "metrics 'm.csv' is not known" in refused.err) == (2, True)


@pytest.mark.thorough
def test_bench_watches_until_it_is_stopped(raw_dataset, tmp_path, cli):
    options = "--watch --consumer-rate 500 --batch-size 20 --metrics".split()
    command = ["bench", raw_dataset, *options, tmp_path / "m.jsonl"]
    ran = cli(*command, "--seconds", "2.5")
    assert ran.code == 0, ran.err
    printed = re.findall(r"^epoch \d+: +[\d,]+ samples/s; training waits +[\d.]+%", ran.out, re.M)
    told = lines(tmp_path / "m.jsonl")
    assert len(told) == len(printed) >= 2
    # no more than the rate, a batch before and two after
    assert told[-1]["samples"] <= 500 * 2.5 + 3 * 20
    with subprocess.Popen(command_line(*command, "--json"), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["batches"] > 0
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 0
    for wrong in ("", "--watch --sweep", "--watch --epochs 1", "--watch --html x.html"):
        assert cli("bench", raw_dataset, "--metrics", "m.jsonl", *wrong.split()).code == 2, wrong


@pytest.mark.thorough
def test_the_page_about_it_works_as_it_is_written(raw_dataset, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "out").symlink_to(raw_dataset)
    subprocess.run([sys.executable, "-c", example], cwd=tmp_path, check=True)
    assert lines(tmp_path / "metrics.jsonl")[-1]["samples"] == 60
