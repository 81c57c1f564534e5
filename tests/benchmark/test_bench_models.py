"""The training steps that bench can feed. Skipped without PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import shardctl
from shardctl.benchmark.measure import consumers
from shardctl.errors import ConsumerError

torch = pytest.importorskip("torch")
from shardctl.benchmark import models  # noqa: E402 - only where PyTorch is


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("make", "size", "parameters"),
    [
        (models.make_resnet50, (224, 224), 25_557_032),
        (models.make_vit_b16, (224, 224), 86_567_656),
        (models.LanguageModel, (1024,), 124_439_808),
    ],
)
def test_the_models_are_those_of_the_papers(make, size, parameters):
    assert sum(each.numel() for each in make(*size).parameters()) == parameters


@pytest.mark.thorough
def test_a_step_learns():
    seen: list[Any] = []

    def make(height: int, width: int) -> Any:
        model = models.VisionTransformer(height * width // 256, width=32, layers=1, heads=2)
        model.register_forward_hook(
            lambda _module, _inputs, out: seen.append(torch.softmax(out.float(), 1)[:, 0].mean())
        )
        return model

    step = models.Step(make)
    image = torch.randint(256, (4, 32, 32, 3), dtype=torch.uint8)
    for _ in range(8):
        step({"image": image})
    assert seen[-1] > 1.5 * seen[0], "every label is 0"


@pytest.mark.parametrize(
    ("step", "batch"),
    [
        (models.resnet50, {}),
        (models.resnet50, {"image": np.zeros((2, 8, 8, 3), np.uint8)}),
        (models.resnet50, {"image": [1]}),
        (models.gpt2, {}),
        (models.gpt2, {"tokens": np.zeros((2, 8))}),
        (models.gpt2, {"tokens": torch.zeros(2, 8)}),
        (models.gpt2, {"tokens": torch.zeros(2).long()}),
    ],
)
def test_a_step_says_what_it_takes(step, batch):
    with pytest.raises(ConsumerError, match="as tensors; give --device"):
        step(batch)


@pytest.mark.thorough
def test_bench_feeds_a_training_step_and_knows_its_own_rate(raw_dataset, monkeypatch):
    monkeypatch.setattr(consumers, "OWN_SECONDS", 0.5)
    step = {"consumer": "shardctl.benchmark.models:resnet50", "device": "cpu"}
    found = shardctl.bench(raw_dataset, runs=1, seconds=1.0, batch_size=4, **step).consumer
    assert found.steps >= 2
    assert found.consumer_rate > 0
    assert (found.verdict == "keeps-up") == (found.accelerator_utilization >= 0.9)


@pytest.mark.thorough
def test_a_language_step_learns_which_token_comes_next(monkeypatch):
    monkeypatch.setattr(models, "VOCABULARY", 64)
    made: list[Any] = []

    def make(length: int) -> Any:
        made.append(models.LanguageModel(length, width=32, layers=1, heads=2))
        return made[0]

    step, tokens = models.LanguageStep(make), torch.arange(16).repeat(2, 1)
    rising: list[float] = []
    for _ in range(40):
        step({"tokens": tokens})
        with torch.no_grad():
            rising.append(torch.softmax(made[0](tokens[:, :-1]), 2)[0, 3, 4].item())
    assert rising[-1] > 1.5 * rising[0], "4 comes after 3"
    step({"tokens": torch.tensor([[60_000, 1, 2, 3]])})
