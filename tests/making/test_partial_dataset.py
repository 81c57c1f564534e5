"""A dataset that is read while it is made: each sample once, in an order that does not depend on
when it was finished."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from custom_steps import SLOW
from dataset_facts import expect_whole, keys
from followed_sources import files_of, write, write_lines
from programs import run_python
from snapshots import SMALL, first_file, ranks, shards_done, slow_recipe, snapshot, wait_until

import shardctl
from shardctl.errors import DatasetError, InputError, TooManyRejectsError, UsageError


def arriving(source: Path, out: Path, **options: Any) -> Any:
    return snapshot(source, out, wait=False, **options)


def keys_of(batches: Any) -> list[str]:
    return [key for batch in batches for key in batch["key"]]


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A recipe that takes 50 ms for a sample."""
    write(tmp_path / "slow_step.py", SLOW)
    monkeypatch.syspath_prepend(tmp_path)
    return slow_recipe()


@pytest.mark.thorough
def test_batches_come_before_the_dataset_is_there(source, out, slow):
    ds = arriving(source, out, recipe=slow)
    loader = ds.loader(batch_size=4)
    batches = iter(loader)
    first = next(batches)
    assert not ds.is_complete
    read = [*first["key"], *keys_of(batches)]
    assert ds.is_complete
    complete = ds.wait()
    assert read == keys(out)
    expect_whole(out)
    expected = complete.loader(4)
    expected.set_epoch(1)
    assert keys_of(loader) == keys_of(expected)


@pytest.mark.thorough
def test_what_needs_the_whole_dataset_says_so_until_it_is_there(source, out, slow):
    ds = arriving(source, out, recipe=slow)
    for need in (len, list, lambda ds: ds[0], lambda ds: ds.classes):
        with pytest.raises(UsageError, match=r"needs the complete dataset: wait\(\) first"):
            need(ds)
    with pytest.raises(TypeError, match="shufle"):
        ds.loader(4, shufle=True)
    assert not hasattr(ds, "no_such_thing")
    complete = ds.wait()
    assert (len(ds), ds[0]["key"], ds.classes) == (60, complete[0]["key"], complete.classes)
    assert [sample["key"] for sample in ds] == keys(out)


@pytest.mark.thorough
def test_its_first_epoch_can_be_watched(source, tmp_path, out, slow):
    """The figures are those of the epoch, though it is read by several loaders, one after the
    other."""
    loader = arriving(source, out, recipe=slow).loader(4)
    figures = tmp_path / "figures.jsonl"
    watched = shardctl.watch(loader, figures, every=0.01)
    for epoch in range(2):
        assert len(keys_of(watched)) == 60
        assert loader.stats().samples == 60
        told = [json.loads(line) for line in figures.read_text().splitlines()]
        last = [told[-1][name] for name in ("samples", "batches", "epoch")]
        assert last == [60 * (epoch + 1), 15 * (epoch + 1), epoch]
        assert [line["samples"] for line in told] == sorted(line["samples"] for line in told)


@pytest.mark.parametrize("drop_last", [False, True])
def test_the_order_depends_on_the_seed_alone(source, out, drop_last):
    """Not on which shards were finished when: the second time all of them are."""

    def epoch(seed: int) -> list[list[str]]:
        ds = arriving(source, out, samples_per_shard=7)
        loader = ds.loader(8, shuffle=True, seed=seed, drop_last=drop_last)
        return [list(batch["key"]) for batch in loader]

    first = epoch(3)
    assert [len(batch) for batch in first] == [8] * 7 + [4] * (not drop_last)
    assert len({key for batch in first for key in batch}) == (56 if drop_last else 60)
    assert epoch(3) == first != epoch(4)


def test_a_state_of_the_first_epoch_is_gone_on_with(source, tmp_path, out):
    def loading(size: int, out: Path = out) -> Any:
        return arriving(source, out).loader(size, shuffle=True)

    whole = keys_of(loading(7, tmp_path / "whole"))
    loader = loading(7)
    batches = iter(loader)
    begun = [*next(batches)["key"], *next(batches)["key"]]
    state = json.loads(json.dumps(loader.state_dict()))
    batches.close()
    later, last = loading(5), loading(5)
    later.load_state_dict(state)
    assert begun + keys_of(later) == whole
    assert later.state_dict()["epoch"] == 1
    last.load_state_dict(later.state_dict())
    assert keys_of(last) == keys_of(later)
    with pytest.raises(UsageError, match="saved with another dataset, seed, shuffle or steps"):
        arriving(source, out).loader(7).load_state_dict(state)


def test_a_state_of_the_first_epoch_is_refused_where_other_samples_came(source, tmp_path, out):
    loader = arriving(source, out).loader(7)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    batches.close()
    first_file(source).unlink()
    later = arriving(source, tmp_path / "other").loader(7)
    later.load_state_dict(state)
    with pytest.raises(UsageError, match="it had content"):
        next(iter(later))


def test_a_split_arrives_alone(source, out):
    ds = arriving(source, out, split="train=0.6,val=0.4")
    val = ds.in_split("val")
    assert keys_of(val.loader(4)) == [sample["key"] for sample in shardctl.open(out, "val")]
    with pytest.raises(UsageError, match="is chosen already"):
        val.in_split("train")
    with pytest.raises(UsageError, match="no split 'test'; it has train, val"):
        keys_of(ds.in_split("test").loader(4))


@pytest.mark.thorough
def test_what_was_finished_before_a_kill_is_read_first(source, tmp_path, out):
    with ranks(1, source, out, tmp_path) as (process,):
        wait_until(lambda: shards_done(out) >= 5)
        process.kill()
        process.wait()
    script = f"""
import shardctl
ds = shardctl.snapshot({str(out)!r}, {str(source)!r}, {slow_recipe()!r}, samples_per_shard=4, wait=False)
keys = [key for batch in ds.loader(4) for key in batch["key"]]
assert keys == [sample["key"] for sample in ds.wait()] and len(keys) == 60
"""
    ran = run_python(script, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert ran.returncode == 0, ran.stderr
    assert "resuming: " in ran.stderr


RANK = """
import json, shardctl
ds = shardctl.snapshot({out!r}, {source!r}, {recipe!r}, samples_per_shard=7, workers=1, wait=False, progress=False)
loader = ds.loader(3, rank={rank}, world_size=2)
print(json.dumps([[list(batch["key"]) for batch in loader] for _ in range(2)]))
"""


@pytest.mark.thorough
def test_ranks_share_the_samples_while_they_arrive(source, out):
    given = {"out": str(out), "source": str(source), "recipe": SMALL}
    commands = [[sys.executable, "-c", RANK.format(**given, rank=rank)] for rank in range(2)]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands
    ]
    one, other = (json.loads(process.communicate(timeout=60)[0]) for process in processes)
    expected = keys(out)
    for number, pair in enumerate(zip(one[0], other[0], strict=True)):
        assert sorted(pair[0] + pair[1]) == sorted(expected[6 * number : 6 * number + 6])
    assert 6 * number + 6 == len(expected)
    assert sorted(key for batch in one[1] + other[1] for key in batch) == sorted(expected)


def test_ranks_get_equally_many_batches_while_samples_arrive(source, out):
    ds = arriving(source, out, samples_per_shard=7)
    for remainder, sizes in (("pad", [8, 8, 8, 8]), ("drop", [8, 8, 8])):
        loaders = [ds.loader(8, rank=rank, world_size=2, remainder=remainder) for rank in range(2)]
        for _ in range(2):
            read = [[list(batch["key"]) for batch in loader] for loader in loaders]
            assert [[len(batch) for batch in rank] for rank in read] == [sizes, sizes]
            different = {key for rank in read for batch in rank for key in batch}
            assert len(different) == min(60, 2 * sum(sizes))
    with pytest.raises(UsageError, match="contradict"):
        ds.loader(8, drop_last=True, remainder="pad")


def test_records_that_turn_out_to_have_other_types_come_once(tmp_path, out):
    """The conversion begins anew then, and its shards are other files."""
    for late in (0, 1):
        lines = ({"n": n + 0.5 if late and n >= 4000 else n} for n in range(5000))
        write_lines(tmp_path / "in" / f"{late}.jsonl", lines)
    ds = arriving(tmp_path / "in", out, recipe={}, samples_per_shard=500)
    values = [value for batch in ds.loader(100) for value in batch["n"].tolist()]
    assert values == [sample["n"] for sample in ds.wait()]
    assert len(values) == 10_000


def test_what_goes_wrong_is_raised_where_it_is_read(source, tmp_path, out):
    first_file(source).write_bytes(b"no image")
    with pytest.raises(TooManyRejectsError, match="1 input of 60 rejected"):
        keys_of(arriving(source, out, max_rejects="0").loader(4))
    nowhere = arriving(tmp_path / "nowhere", tmp_path / "other")
    for read in (nowhere.wait, lambda: keys_of(nowhere.loader(4))):
        with pytest.raises(InputError, match="no such file or folder"):
            read()
    for name in ("processes", "repeat"):
        with pytest.raises(UsageError, match=f"{name}= needs the complete dataset"):
            arriving(source, tmp_path / "third").loader(4, **{name: 2})


def test_a_dataset_that_is_old_is_brought_up_to_date_first(source, out):
    snapshot(source, out)
    gone = first_file(source)
    gone.unlink()
    keys = keys_of(arriving(source, out).loader(4))
    assert len(keys) == 59
    assert gone.relative_to(source).as_posix() not in keys


@pytest.mark.parametrize("keep", [0, 1])
def test_a_dataset_that_another_job_brings_up_to_date_meanwhile_is_not_mixed_with_it(
    source, tmp_path, out, keep
):
    """Neither in what it has opened nor in what it looks at later: raw shards of both are of the
    same size."""
    raw = {"store": "raw", "transform": [{"name": "resize", "size": "8x8"}]}
    plain = snapshot(source, tmp_path / "plain", recipe=raw)
    old = {sample["key"]: sample["image"].tolist() for sample in plain}
    ds = arriving(source, out, recipe=raw)
    batches = iter(ds.loader(batch_size=4, mmap=False, prefetch=1, threads=1))
    read = [next(batches)]
    ds.wait()
    for path in files_of(source)[30:]:
        path.write_bytes(first_file(source).read_bytes())
    snapshot(source, out, recipe=raw, keep_generations=keep)
    with contextlib.suppress(DatasetError):
        read += batches
    found = [
        (key, image.tolist())
        for batch in read
        for key, image in zip(batch["key"], batch["image"], strict=True)
    ]
    assert len(found) == len(dict(found))
    assert all(old[key] == image for key, image in found)
