"""`variant="epoch"`: each input once in each epoch, and all of its variants in turn."""

from __future__ import annotations

import itertools
import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import shardctl
from shardctl.errors import UsageError

VARIANTS = 3


@pytest.fixture(scope="module")
def augmented(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 photos with three random crops each."""
    out = tmp_path_factory.mktemp("variants") / "out"
    steps = [{"name": "random_crop", "size": 16}]
    recipe = {"store": "raw", "variants": VARIANTS, "transform": steps}
    shardctl.convert(photos, out, recipe=recipe, workers=0, split="train=0.7,val=0.3")
    return out


def epochs(loader: Any, count: int) -> list[list[tuple[str, int]]]:
    return [
        [
            (key, int(v))
            for batch in loader
            for key, v in zip(batch["key"], batch["variant"], strict=True)
        ]
        for _ in range(count)
    ]


@pytest.mark.parametrize("shuffle", [False, True, "window", "block"])
def test_an_epoch_has_each_input_once_and_each_variant_comes_in_turn(augmented, shuffle):
    ds = shardctl.open(augmented)
    loader = ds.loader(7, shuffle=shuffle, seed=5, threads=2, variant="epoch")
    assert len(loader) == 9  # 60 inputs
    seen = epochs(loader, VARIANTS + 1)
    keys = {sample["key"] for sample in ds}
    for number, epoch in enumerate(seen):
        assert Counter(key for key, _ in epoch) == Counter(keys)
        assert {variant for _, variant in epoch} == {number % VARIANTS}
    assert (seen[0] == seen[VARIANTS]) == (shuffle is False)


def test_ranks_share_an_epoch(augmented):
    ds = shardctl.open(augmented, split="train")
    loaders = [
        ds.loader(4, shuffle=True, rank=rank, world_size=2, variant="epoch", remainder="uneven")
        for rank in range(2)
    ]
    for number in range(2):
        keys = [
            key for loader in loaders for key, variant in epochs(loader, 1)[0] if variant == number
        ]
        assert sorted(keys) == sorted({sample["key"] for sample in ds})


def test_an_epoch_is_resumed_with_its_variant(augmented):
    ds = shardctl.open(augmented)
    whole, loader, rest = (ds.loader(8, shuffle=True, variant="epoch") for _ in range(3))
    first, second = epochs(whole, 2)
    epochs(loader, 1)
    assert sum(len(batch["key"]) for batch in itertools.islice(loader, 3)) == 24
    state = json.loads(json.dumps(loader.state_dict()))
    rest.load_state_dict(state)
    assert epochs(rest, 1)[0] == second[24:]
    assert first != second
    with pytest.raises(UsageError):
        ds.loader(8, shuffle=True).load_state_dict(state)


def test_worker_processes_make_the_same_batches(augmented):
    ds = shardctl.open(augmented)
    alone, *others = (
        epochs(each.loader(16, shuffle=True, variant="epoch", processes=processes), 2)
        for each, processes in ((ds, None), (ds, 1), (pickle.loads(pickle.dumps(ds)), None))
    )
    assert others == [alone] * 2


def test_inputs_with_fewer_variants_repeat_them(out):
    variants = [(key, variant) for variant in range(4) for key in range(20) if key % 4 >= variant]
    shardctl.write(out, [{"key": f"k{key}", "variant": variant} for key, variant in variants])
    seen = epochs(shardctl.open(out).loader(6, shuffle=True, variant="epoch"), 12)
    for number, epoch in enumerate(seen):
        assert dict(epoch) == {f"k{key}": number % (key % 4 + 1) for key in range(20)}
        assert len(epoch) == 20


def test_one_variant_alone(augmented):
    (epoch,) = epochs(shardctl.open(augmented).loader(6, variant=2), 1)
    assert (len(epoch), {variant for _, variant in epoch}) == (60, {2})


def test_what_cannot_be_is_refused(augmented, whole_dataset):
    for root, variant, said in (
        (whole_dataset, "epoch", "convert with --variants K"),
        (augmented, 3, "no sample has the variant 3"),
        (augmented, "each", "variant 'each' is not known"),
    ):
        with pytest.raises(UsageError, match=said):
            shardctl.open(root).loader(4, variant=variant)


def test_inspect_says_how_different_variants_are(augmented, out, cli):
    found = cli("inspect", augmented, "--json").json["variants"]
    assert (found["compared"], found["each"]) == (32, VARIANTS)
    assert found["difference"] > 0
    assert "variants: 3.0 of each of 32 inputs" in cli("inspect", augmented).out
    samples = [{"key": f"{n // 2}", "variant": n % 2, "text": "the same"} for n in range(10)]
    shardctl.write(out, samples)
    alike = cli("inspect", out, "--json").json["variants"]
    assert (alike["alike"], alike["difference"]) == (alike["compared"], None)
