"""What random transforms draw has the distribution that is promised: 20,000 draws of a fixed seed,
alpha = 1e-6."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from shardctl.transforms import base
from shardctl.transforms.image import automatic, values

DRAWS = 20_000
KS = math.sqrt(-math.log(1e-6 / 2) / 2) / math.sqrt(DRAWS)
"""Largest distance of an empirical from the true distribution function (Kolmogorov's limit for many
draws)."""


def assert_distributed(sample: Iterable[float], cdf: Callable[[Any], Any]) -> None:
    ordered = np.sort(np.fromiter(sample, float))
    assert len(ordered) == DRAWS
    wanted = cdf(ordered)
    steps = np.arange(DRAWS + 1) / DRAWS
    assert max(np.abs(wanted - steps[:-1]).max(), np.abs(wanted - steps[1:]).max()) < KS


def assert_uniform(sample: Iterable[float], low: float, high: float) -> None:
    assert_distributed(sample, lambda x: np.clip((x - low) / (high - low), 0, 1))


def assert_counts(found: Sequence[Any], probabilities: dict[Any, float]) -> None:
    """Chi-squared, its limit by Wilson and Hilferty."""
    counts = Counter(found)
    assert not set(counts) - set(probabilities)
    total = len(found)
    chi2 = sum((counts[key] - total * p) ** 2 / (total * p) for key, p in probabilities.items())
    degrees = len(probabilities) - 1
    # 4.753: the normal's 1 - 1e-6
    limit = degrees * (1 - 2 / (9 * degrees) + 4.753 * math.sqrt(2 / (9 * degrees))) ** 3
    assert chi2 < limit


def evenly(keys: Iterable[Any]) -> dict[Any, float]:
    keys = list(keys)
    return dict.fromkeys(keys, 1 / len(keys))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(15)


def test_whole_numbers_include_both_ends(rng):
    assert_counts([base.whole(rng, 3, 9) for _ in range(DRAWS)], evenly(range(3, 10)))


def test_jitter_draws_every_order_and_every_factor(rng):
    spans = {
        "brightness": (0.6, 1.4),
        "contrast": (0.0, 3.0),
        "saturation": (1.0, 1.5),
        "hue": (-0.1, 0.1),
    }
    drawn = [values.jitter(rng, spans) for _ in range(DRAWS)]
    assert_counts(
        [tuple(name for name, _ in each) for each in drawn], evenly(itertools.permutations(spans))
    )
    for name, span in spans.items():
        assert_uniform((dict(each)[name] for each in drawn), *span)


def test_erased_rectangles(rng):
    """In a large image nearly every first try fits, so that area, shape and place have the
    distributions that are drawn."""
    width, height = 40_000, 30_000
    scale, ratio = (0.02, 0.1), (0.5, 2.0)
    drawn = [values.rectangle(rng, (width, height), scale, ratio) for _ in range(DRAWS)]
    boxes = np.array([box for box in drawn if box is not None], float)
    left, top, w, h = boxes.T
    assert_uniform(w * h / (width * height), *scale)
    assert_uniform(np.log(h / w), *np.log(ratio))
    assert_uniform(left / (width - w), 0, 1)
    assert_uniform(top / (height - h), 0, 1)


def test_erased_rectangles_are_smaller_than_the_image_or_there_is_none(rng):
    drawn = [values.rectangle(rng, (9, 7), (0.3, 1.0), (0.3, 3.3)) for _ in range(2000)]
    boxes = [box for box in drawn if box is not None]
    assert boxes
    for left, top, width, height in boxes:
        assert 0 <= left <= left + width <= 9
        assert 0 <= top <= top + height <= 7
        assert width < 9
        assert height < 7
    assert values.rectangle(rng, (4, 4), (1.0, 1.0), (1.0, 1.0)) is None


def test_rand_augment_draws_operations_with_replacement_and_signs(rng):
    step = automatic.RandAugment()
    drawn = [each for _ in range(DRAWS // 2) for each in step.drawn((331, 662), rng)]
    assert_counts([name for name, _ in drawn], evenly(automatic.RAND_AUGMENT))
    signs = [
        (name, magnitude < 0)
        for name, magnitude in drawn
        if name in ("shear_x", "rotate", "contrast")
    ]
    assert_counts(
        signs, evenly(itertools.product(("shear_x", "rotate", "contrast"), (True, False)))
    )
    sizes = {name: abs(magnitude) for name, magnitude in drawn}
    assert sizes["translate_x"] == pytest.approx(45)  # 150 / 331 of the width, times 9 / 30
    assert sizes["translate_y"] == pytest.approx(90)
    assert sizes["posterize"] == 7
    assert sizes["solarize"] == pytest.approx(0.7)
    assert sizes["identity"] == 0


def test_trivial_augment_draws_one_operation_and_any_bin(rng):
    drawn = [automatic.TrivialAugment().drawn((100, 100), rng) for _ in range(DRAWS)]
    assert {len(each) for each in drawn} == {1}
    assert_counts([each[0][0] for each in drawn], evenly(automatic.TRIVIAL_AUGMENT))
    turns = [round(each[0][1] / 4.5) for each in drawn if each[0][0] == "rotate"]
    assert_counts(turns, {turn: 1 / 31 if turn == 0 else 1 / 62 for turn in range(-30, 31)})


@pytest.mark.parametrize("policy", automatic.POLICIES)
def test_auto_augment_draws_a_pair_and_each_operation_with_its_probability(policy, rng):
    step = automatic.AutoAugment(policy=policy)
    made = Counter(name for _ in range(DRAWS) for name, _ in step.drawn((64, 64), rng))
    wanted: Counter[str] = Counter()
    for name, probability, _ in itertools.chain(*automatic.POLICIES[policy]):
        wanted[name] += probability / 25  # type: ignore[assignment]
    assert set(made) <= set(wanted)
    for name, mean in wanted.items():
        assert abs(made[name] / DRAWS - mean) < 4.9 * math.sqrt(2 * max(mean, 1e-3) / DRAWS), name


@pytest.mark.thorough
def test_aug_mix_draws_weights_depths_and_weak_magnitudes(rng):
    drawn = [automatic.AugMix().drawn((90, 90), rng) for _ in range(DRAWS)]
    assert_uniform((weight for weight, _ in drawn), 0, 1)  # Beta(1, 1)
    for at in range(3):  # a part of Dirichlet(1, 1, 1) is Beta(1, 2)
        shares = (chains[at][0] / (1 - weight) for weight, chains in drawn)
        assert_distributed(shares, lambda x: 1 - (1 - x) ** 2)
    assert_counts([len(chains[0][1]) for _, chains in drawn], evenly((1, 2, 3)))
    operations = [operation for _, chains in drawn for operation in chains[1][1]]
    assert_counts([name for name, _ in operations], evenly(automatic.AUG_MIX))
    turns = [round(magnitude / (30 / 9)) for name, magnitude in operations if name == "rotate"]
    assert_counts(turns, {0: 1 / 3, 1: 1 / 6, -1: 1 / 6, 2: 1 / 6, -2: 1 / 6})
    step = automatic.AugMix(severity=10, mixture_width=5, chain_depth=4, all_ops=False)
    assert {len(chain) for _, chain in step.drawn((9, 9), rng)[1]} == {4}
