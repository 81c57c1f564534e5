"""A state goes on where the order and the samples are the same, and is refused everywhere else."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st

import shardctl
from shardctl.errors import UsageError
from shardctl.loader.loader import Loader

SAMPLES = 211
BATCH = 8


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples of all lengths, an input's two variants side by side."""
    out = tmp_path_factory.mktemp("states") / "out"
    lengths = np.random.default_rng(0).integers(1, 90, SAMPLES)
    samples = [
        {"key": f"k{n // 2}", "variant": n % 2, "n": n, "tokens": np.arange(lengths[n])}
        for n in range(SAMPLES)
    ]
    shardctl.write(out, samples, samples_per_shard=30)
    return out


CHOSEN: dict[str, Callable[[Any], Any]] = {
    "all": lambda ds: ds,
    "slice": lambda ds: ds[:],
    "reversed": lambda ds: ds[::-1],
    "early": lambda ds: ds.filter("index < 150"),
    "late": lambda ds: ds.filter("index >= 61"),
    "mix": lambda ds: shardctl.mix([ds[:100], ds[100:200]], [1, 2], samples=150),
    "mix of others": lambda ds: shardctl.mix([ds[:100][::-1], ds[100:200]], [1, 2], samples=150),
    "mix of other weights": lambda ds: shardctl.mix([ds[:100], ds[100:200]], [2, 1], samples=150),
}
DRAWN: dict[str, list[Any]] = {
    "chosen": list(CHOSEN),
    "shuffle": [False, "global", "window"],
    "seed": [0, 1],
    "lanes": [1, 4],
    "bucket": [None, {"tokens": 4}, {"tokens": 5}],
    "variant": [None, "epoch", 0, 1],
}


def loader_of(ds: Any, order: dict[str, Any]) -> Loader:
    given = {name: value for name, value in order.items() if name != "chosen"}
    if "mix" in order["chosen"] or given["variant"] == "epoch":
        given["bucket"] = None  # which they do not take
    loader: Loader = CHOSEN[order["chosen"]](ds).loader(BATCH, threads=1, interleave=4, **given)
    return loader


def numbers(loader: Any) -> list[int]:
    return [n for batch in loader for n in batch["n"].tolist()]


def stopped(loader: Loader, epoch: int, batches: int) -> tuple[dict[str, Any], list[int]]:
    """Return a state in the middle of an epoch, as it is read from a file, and what has come of the
    epoch."""
    loader.set_epoch(epoch)
    seen = numbers(itertools.islice(loader, batches))
    return json.loads(json.dumps(loader.state_dict())), seen


@examples(60)
@given(
    order=st.fixed_dictionaries({name: st.sampled_from(values) for name, values in DRAWN.items()}),
    changed=st.sampled_from(["nothing", *DRAWN]),
    epoch=st.integers(0, 2),
    batches=st.integers(1, 7),
    data=st.data(),
)
def test_a_state_gives_the_rest_of_its_own_epoch_or_is_refused(
    tokens, order, changed, epoch, batches, data
):
    ds = shardctl.open(tokens)
    state, begun = stopped(loader_of(ds, order), epoch, batches)
    whole = loader_of(ds, order)
    whole.set_epoch(epoch)
    epochs = [numbers(whole), numbers(whole)]
    other = (
        order
        if changed == "nothing"
        else {**order, changed: data.draw(st.sampled_from(DRAWN[changed]))}
    )
    resumed = loader_of(ds, other)
    try:
        resumed.load_state_dict(state)
    except UsageError:
        assert order != other
    else:
        assert begun + numbers(resumed) == epochs[0]
        assert numbers(resumed) == epochs[1]


def test_a_state_of_another_order_is_refused_by_name(tokens):
    ds = shardctl.open(tokens)
    plain, _ = stopped(ds.loader(BATCH), 0, 3)
    # as versions before this one wrote it
    earlier = {"dataset": "0" * 64, "split": None, "samples": SAMPLES, "shuffle": None}
    for state, other, said in (
        (plain, ds[::-1].loader(BATCH), "another dataset, seed, shuffle or steps"),
        (plain, ds.loader(BATCH, bucket={"tokens": 4}), "another"),
        (plain, ds.loader(BATCH, seed=1, shuffle="window"), "shuffle"),
        ({"epoch": 0, "samples": 8, "order": earlier}, ds.loader(BATCH), "dataset"),
    ):
        with pytest.raises(UsageError, match=said):
            other.load_state_dict(state)
    shuffled, _ = stopped(ds.loader(BATCH, shuffle=True), 0, 3)
    with pytest.raises(UsageError, match=r"seed 0 \(here 1\)"):
        ds.loader(BATCH, seed=1, shuffle=True).load_state_dict(shuffled)


def lines(path: Path, begin: int, end: int) -> None:
    path.write_text(
        "".join(json.dumps({"n": n, "text": "x" * (n % 97)}) + "\n" for n in range(begin, end))
    )


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("shuffle", [False, "global", "window"])
def test_a_state_follows_the_samples_and_not_where_they_came_from(tmp_path, shuffle):
    source, out, copy, fresh = (tmp_path / name for name in ("source", "out", "copy", "fresh"))
    source.mkdir()
    for number in range(4):
        lines(source / f"{number}.jsonl", 60 * number, 60 * number + 60)

    def convert(target: Path, **options: Any) -> None:
        shardctl.convert(source, target, samples_per_shard=25, workers=0, **options)

    def loader(place: Path) -> Loader:
        return shardctl.open(place).loader(BATCH, shuffle=shuffle, threads=1)

    def goes_on(place: Path) -> bool:
        resumed = loader(place)
        try:
            resumed.load_state_dict(state)
        except UsageError:
            return False
        assert begun + numbers(resumed) == whole
        return True

    convert(out)
    whole = numbers(loader(out))
    state, begun = stopped(loader(out), 0, 5)
    shutil.copytree(out, copy)
    assert goes_on(copy)
    (copy / "manifest.json").unlink()
    shardctl.repair(copy)
    assert goes_on(copy), "the manifest was repaired"
    for path in source.iterdir():
        os.utime(path, (1, 1))
    convert(out, update=True)
    assert goes_on(out), "files were only touched"
    lines(source / "4.jsonl", 240, 270)
    (source / "0.jsonl").unlink()
    convert(out, update=True)
    convert(fresh)
    assert sorted(numbers(loader(out))) == sorted(numbers(loader(fresh)))
    assert (goes_on(out), goes_on(fresh)) == (False, False)
    whole = numbers(loader(out))
    state, begun = stopped(loader(out), 0, 5)
    assert not goes_on(fresh), "as on two ranks with such copies"
    shardctl.compact(out)
    assert goes_on(out) in (False, shuffle is False)
