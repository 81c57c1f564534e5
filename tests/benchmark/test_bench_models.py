"""The training steps that bench can feed. Skipped without PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from token_samples import packed_blocks, write_packed

import shardctl
from shardctl.benchmark.measure import consumers
from shardctl.errors import ConsumerError

torch = pytest.importorskip("torch")
from shardctl.benchmark import models  # noqa: E402 - only where PyTorch is


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("make", "parameters"), [(models.make_resnet50, 25_557_032), (models.make_vit_b16, 86_567_656)]
)
def test_the_models_are_those_of_the_papers(make, parameters):
    model = make(224, 224)
    assert sum(each.numel() for each in model.parameters()) == parameters


@pytest.mark.thorough
def test_a_step_learns():
    seen: list[Any] = []

    def make(height: int, width: int) -> Any:
        model = models.VisionTransformer(height * width // 256, width=32, layers=1, heads=2)
        model.register_forward_hook(
            lambda _module, _inputs, out: seen.append(
                torch.softmax(out.float(), 1)[:, 0].mean().item()
            )
        )
        return model

    step = models.Step(make)
    for _ in range(8):
        step(
            {
                "image": torch.from_numpy(
                    np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), np.uint8)
                )
            }
        )
    assert seen[-1] > 1.5 * seen[0], "every label is 0"


@pytest.mark.parametrize("batch", [{}, {"image": np.zeros((2, 8, 8, 3), np.uint8)}, {"image": [1]}])
def test_a_step_says_what_it_takes(batch):
    with pytest.raises(ConsumerError, match="takes images of one size as tensors; give --device"):
        models.resnet50(batch)


@pytest.mark.thorough
def test_bench_feeds_a_training_step_and_knows_its_own_rate(raw_dataset, monkeypatch):
    monkeypatch.setattr(consumers, "OWN_SECONDS", 0.5)
    options: dict[str, Any] = {"consumer": "shardctl.benchmark.models:resnet50", "device": "cpu"}
    found = shardctl.bench(
        raw_dataset, runs=1, seconds=1.0, batch_size=4, shuffle=True, **options
    ).consumer
    assert found is not None
    assert found.steps >= 2
    assert found.consumer_rate > 0
    assert (found.verdict == "keeps-up") == (found.accelerator_utilization >= 0.9)


@pytest.mark.thorough
def test_the_language_model_is_that_of_the_paper():
    assert sum(each.numel() for each in models.make_gpt2(1024).parameters()) == 124_439_808


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


@pytest.mark.parametrize(
    "batch",
    [
        {},
        {"tokens": np.zeros((2, 8))},
        {"tokens": torch.zeros(2, 8)},
        {"tokens": torch.zeros(2).long()},
    ],
)
def test_a_language_step_says_what_it_takes(batch):
    with pytest.raises(
        ConsumerError, match="takes blocks of tokens of one length as tensors; give --device"
    ):
        models.gpt2(batch)


@pytest.mark.thorough
def test_bench_feeds_blocks_to_a_language_model(tmp_path, monkeypatch):
    monkeypatch.setattr(consumers, "OWN_SECONDS", 0.1)
    monkeypatch.setattr(models, "VOCABULARY", 300)
    small = models.LanguageStep(
        lambda length: models.LanguageModel(length, width=8, layers=1, heads=2)
    )
    monkeypatch.setattr(models, "gpt2", small)
    out = write_packed(
        tmp_path / "out", packed_blocks({str(number): "a text" for number in range(40)})
    )
    options: dict[str, Any] = {
        "consumer": "shardctl.benchmark.models:gpt2",
        "device": "cpu",
        "threads": 1,
    }
    found = shardctl.bench(out, runs=1, seconds=0.3, batch_size=4, **options)
    assert found.consumer is not None
    assert found.consumer.steps >= 2
    assert (found.tokens_per_s or 0) > 0
