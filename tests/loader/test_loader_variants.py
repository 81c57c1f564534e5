"""`variant="epoch"`: each input once in each epoch, and all of its variants in turn."""

from __future__ import annotations

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
    recipe = {
        "store": "raw",
        "variants": VARIANTS,
        "transform": [{"name": "random_crop", "size": 16}],
    }
    shardctl.convert(photos, out, recipe=recipe, workers=0, split="train=0.7,val=0.3")
    return out


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs with one to four variants, in any order."""
    out = tmp_path_factory.mktemp("uneven") / "out"
    samples = [
        {"key": f"k{key}", "variant": variant, "n": key}
        for variant in range(4)
        for key in range(20)
        if key % 4 >= variant
    ]
    shardctl.write(out, samples)
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
@pytest.mark.parametrize("threads", [1, 2])
def test_an_epoch_has_each_input_once_and_each_variant_comes_in_turn(augmented, shuffle, threads):
    ds = shardctl.open(augmented)
    loader = ds.loader(7, shuffle=shuffle, seed=5, threads=threads, variant="epoch")
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
    whole = ds.loader(8, shuffle=True, variant="epoch")
    first, second = epochs(whole, 2)
    loader = ds.loader(8, shuffle=True, variant="epoch")
    epochs(loader, 1)
    batches = iter(loader)
    taken = [next(batches) for _ in range(3)]
    state = json.loads(json.dumps(loader.state_dict()))
    rest = ds.loader(8, shuffle=True, variant="epoch")
    rest.load_state_dict(state)
    assert sum(len(batch["key"]) for batch in taken) == 24
    assert epochs(rest, 1)[0] == second[24:]
    assert first != second
    with pytest.raises(UsageError):
        ds.loader(8, shuffle=True).load_state_dict(state)


def test_worker_processes_make_the_same_batches(augmented):
    ds = shardctl.open(augmented)
    alone = epochs(ds.loader(16, shuffle=True, variant="epoch"), 2)
    loader = ds.loader(16, shuffle=True, variant="epoch", processes=1)
    assert epochs(loader, 2) == alone
    assert (
        epochs(pickle.loads(pickle.dumps(ds)).loader(16, shuffle=True, variant="epoch"), 2) == alone
    )


def test_inputs_with_fewer_variants_repeat_them(uneven):
    seen = epochs(shardctl.open(uneven).loader(6, shuffle=True, variant="epoch"), 12)
    for number, epoch in enumerate(seen):
        assert dict(epoch) == {f"k{key}": number % (key % 4 + 1) for key in range(20)}
        assert len(epoch) == 20


def test_one_variant_alone(augmented):
    (epoch,) = epochs(shardctl.open(augmented).loader(6, variant=2), 1)
    assert (len(epoch), {variant for _, variant in epoch}) == (60, {2})


def test_what_cannot_be_is_refused(augmented, whole_dataset):
    ds = shardctl.open(augmented)
    with pytest.raises(UsageError, match="its samples have no variants; convert with --variants K"):
        shardctl.open(whole_dataset).loader(4, variant="epoch")
    with pytest.raises(UsageError, match="no sample has the variant 3"):
        ds.loader(4, variant=3)
    with pytest.raises(UsageError, match="variant 'each' is not known"):
        ds.loader(4, variant="each")


def test_inspect_says_how_different_variants_are(augmented, out, cli):
    found = cli("inspect", augmented, "--json").json["variants"]
    assert (found["compared"], found["each"]) == (32, VARIANTS)
    assert found["difference"] > 0
    assert (
        cli("inspect", augmented)
        .out.splitlines()[-1]
        .startswith("variants: 3.0 of each of 32 inputs compared")
    )
    shardctl.write(
        out,
        [{"key": f"{n // 2}", "variant": n % 2, "text": "the same"} for n in range(10)],
    )
    alike = cli("inspect", out, "--json").json["variants"]
    assert (alike["alike"], alike["difference"]) == (alike["compared"], None)
