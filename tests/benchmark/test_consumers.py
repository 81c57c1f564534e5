"""Does a consumer starve? Clocks, presets, functions of one's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_this_process import convert
from quick_measurements import quick  # noqa: F401 (a fixture)
from token_samples import EOS, block_of, write_packed

import shardctl
from shardctl.benchmark.measure import consumers
from shardctl.benchmark.measure.consumers import feed_paced
from shardctl.benchmark.measure.result import ConsumerResult
from shardctl.benchmark.options import PRESETS
from shardctl.errors import ConsumerError, UsageError


def fed(root: Path, **options: Any) -> Any:
    """Return what a short measurement says of a consumer."""
    found = shardctl.bench(root, **{"runs": 1, "seconds": 0.2, "batch_size": 16, **options})
    return found.consumer


class Clock:
    """Time that passes only where somebody lets it. Sleeping takes `late` seconds longer than was
    asked for."""

    def __init__(self, late: float) -> None:
        self.now, self.late = 100.0, late

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self.late

    def batches(self, count: int, waits: float) -> Iterator[dict[str, Any]]:
        for _ in range(count):
            self.now += waits
            yield {"key": np.zeros(10)}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(late=0.003)
    monkeypatch.setattr(consumers, "time", clock)
    return clock


def test_a_consumers_clock_does_not_drift(clock):
    fed = feed_paced(clock.batches(1001, waits=0.0), 1000.0, 1e9, lambda _: None)
    assert fed.steps == 1000
    assert fed.seconds == pytest.approx(1000 * 0.010)
    assert clock.now - 100 == pytest.approx(1001 * 0.010, abs=0.004), (
        "3 ms late 1,000 times would be 3 s"
    )
    assert fed.utilization == pytest.approx(1.0)


def test_waiting_for_a_batch_is_a_stall_and_the_first_step_is_left_out(clock):
    fed = feed_paced(clock.batches(101, waits=0.030), 1000.0, 1e9, lambda _: None)
    assert fed.utilization == pytest.approx(0.010 / 0.040)
    assert (fed.steps, fed.samples) == (100, 1000)


def test_a_consumer_stops_when_its_time_is_over(clock):
    assert feed_paced(clock.batches(1000, waits=0.0), 1000.0, 0.1, lambda _: None).steps == 10
    assert feed_paced(clock.batches(1000, waits=0.0), 1.0, 0.1, lambda _: None).steps == 2, (
        "two steps at the least"
    )


def result(utilization: float, limit: float, rate: float = 1000.0) -> ConsumerResult:
    return ConsumerResult("rate", rate, 1, utilization, 1 - utilization, 10, 1.0, limit, {})


@pytest.mark.parametrize(
    ("utilization", "limit", "verdict", "fed", "starves_at"),
    [
        (0.95, 2300.0, "keeps-up", 2.3, 3),
        (0.90, 950.0, "keeps-up", 0.95, 2),
        (0.89, 890.0, "starves", 0.89, 1),
    ],
)
def test_nine_tenths_are_enough(utilization, limit, verdict, fed, starves_at):
    found = result(utilization, limit)
    assert (found.verdict, found.gpus_fed, found.starves_at) == (verdict, fed, starves_at)
    assert (
        found.utilization_of(starves_at) < 0.9 <= found.utilization_of(max(1, starves_at - 1))
        or starves_at == 1
    )


@pytest.mark.thorough
def test_a_slow_consumer_is_kept_busy_and_a_fast_one_starves(cli, raw_dataset):
    options = "--runs 1 --seconds 1 --batch-size 4 --threads 1 --consumer-rate".split()
    slow = cli("bench", raw_dataset, *options, 20, "--json")
    assert (slow.code, slow.json["verdict"], slow.json["consumer_rate"]) == (0, "keeps-up", 20)
    assert slow.json["accelerator_utilization"] >= 0.9
    assert slow.json["stall_fraction"] == pytest.approx(1 - slow.json["accelerator_utilization"])
    fast = cli("bench", raw_dataset, *options, 1e9, "--gpus", 4)
    assert fast.code == 1
    assert "consumer: 4 GPUs of 1,000,000,000.0 samples/s each" in fast.out
    assert "STARVES: the loader can feed 0.0 such GPUs" in fast.out
    assert "`shardctl advise SRC --consumer-rate 1e+09`" in fast.out
    assert "hint:" not in cli("bench", raw_dataset, *options, 20).out


def test_a_rate_that_would_take_for_ever_is_refused(raw_dataset):
    with pytest.raises(UsageError, match=r"takes 2,560 s, too long .* smaller batch_size"):
        shardctl.bench(raw_dataset, consumer_rate=0.1)


def test_every_preset_has_a_source_and_a_date(cli):
    assert len(cli("bench", "--list-consumers", "--json").json["consumers"]) == len(PRESETS)
    assert cli("bench").code == 2
    listed = cli("bench", "--list-consumers")
    assert listed.code == 0
    for preset in PRESETS:
        assert all((preset.rate > 0, preset.source, preset.date, preset.name in listed.out))
    assert len({preset.name for preset in PRESETS}) == len(PRESETS)


def test_a_preset_of_images_is_a_rate_of_samples(raw_dataset):
    found = fed(raw_dataset, consumer="resnet50-v100")
    assert (found.consumer, found.consumer_rate) == ("resnet50-v100", 1200)
    assert "NVIDIA" in found.notes[0]


def test_a_preset_of_tokens_is_divided_by_the_tokens_of_a_sample(tmp_path, out):
    rows = [f'{{"tokens": {list(range(length))}}}' for length in (100, 200, 300, 400)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    convert(tmp_path / "rows.jsonl", out)
    found = fed(out, batch_size=2, consumer="mpt-1b-h100")
    assert found.consumer_rate == pytest.approx(45_455 / 250, abs=0.01)
    assert "250.0 tokens per sample (the mean of tokens)" in found.notes[1]


def test_tokens_of_blocks_are_counted_without_padding(out, cli):
    """Blocks of 16, two of three of them full of one document: 12 tokens on average."""
    full = block_of([("a", 0, [1] * 15 + [EOS])])
    blocks = [full, full, block_of([("b", 0, [1, 2, EOS]), ("c", 0, [EOS])])] * 4
    write_packed(out, blocks)
    result = shardctl.bench(out, runs=1, seconds=0.2, batch_size=3, consumer="mpt-1b-h100")
    assert result.tokens_per_s == pytest.approx(12 * result.samples_per_s, rel=1e-3)
    assert result.consumer.consumer_rate == pytest.approx(45_455 / 12, rel=1e-3)
    assert "12.0 tokens per sample (the mean of tokens without padding)" in result.consumer.notes[1]
    assert "tokens/s" in cli("bench", out, "--runs", 1, "--seconds", 0.02).out


def test_a_function_gets_blocks_of_tokens(own, out):
    write_packed(out, [block_of([("a", 0, [1] * 15 + [EOS])])] * 8)
    assert fed(out, batch_size=4, consumer=f"{own}:take_blocks").steps > 0


def test_a_preset_must_fit_the_dataset(raw_dataset, demo, out):
    convert(demo / "texts", out)
    for root, consumer, said in (
        (raw_dataset, "mpt-7b-h100", "takes tokens, but"),
        (out, "vit-b16-rtx3090", "takes images, but"),
        (raw_dataset, "resnet-a100", "not known; did you mean resnet50-a100"),
    ):
        with pytest.raises(UsageError, match=said):
            shardctl.bench(root, consumer=consumer)


MODULE = """
import threading

seen = []

def take(batch):
    seen.append(batch["image"].shape)
    threading.Event().wait(0.02)

def take_blocks(batch):
    assert batch["tokens"].shape == (4, 16) and batch["tokens"].dtype == "uint16", batch

def fail(batch):
    raise ValueError("no such layer")

def hang(batch):
    threading.Event().wait()

number = 7
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"consumer_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(consumers, "OWN_SECONDS", 0.1)
    return name


def test_a_function_is_called_with_every_batch(own, raw_dataset):
    found = fed(raw_dataset, seconds=0.3, consumer=f"{own}:take")
    assert 200 < found.consumer_rate <= 16 / 0.02
    assert (found.verdict == "keeps-up") == (found.accelerator_utilization >= 0.9)
    shapes = sys.modules[own].seen
    assert len(shapes) > found.steps >= 2
    # the last batch of an epoch is left out, as in training
    assert set(shapes) == {(16, 32, 32, 3)}


def test_a_function_that_raises_is_named_with_its_line(own, raw_dataset):
    with pytest.raises(ConsumerError, match=rf"no such layer \(.*{own}.py, line 14\)"):
        fed(raw_dataset, consumer=f"{own}:fail")


def test_a_function_that_never_returns_is_given_up(own, cli, raw_dataset):
    options = ["--runs", 1, "--epochs", 1, "--consumer", f"{own}:hang", "--consumer-timeout", 0.3]
    given_up = cli("bench", raw_dataset, *options)
    assert (given_up.code, f"{own}:hang has not returned" in given_up.err) == (3, True)


def test_a_function_that_is_none_is_refused(own, raw_dataset):
    for target, message in (
        ("no_such_module:take", "cannot import"),
        (f"{own}:absent", "has no absent"),
        (f"{own}:number", "number is not a function"),
    ):
        with pytest.raises(UsageError, match=message):
            shardctl.bench(raw_dataset, consumer=target)


def test_a_device_needs_pytorch_or_has_it(own, raw_dataset):
    pytest.importorskip("torch")
    assert fed(raw_dataset, consumer=f"{own}:take", device="cpu").steps >= 2
