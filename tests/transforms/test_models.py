"""Models of a person's own: made once in each worker, called with many samples, and the same rows
however it was made."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from dataset_facts import rejects_of, sums
from dataset_files import shards_in
from image_files import images
from json_lines import json_lines

import shardctl
from shardctl.errors import InputError, UsageError, WorkerError

MODELS = """
import ctypes, os, signal
import numpy as np

MADE, CALLS = [], []

class Recorder:
    '''Says of each sample which others were in its call: the worst that a model may do.'''

    version = "1"

    def __init__(self, bad="never", **more):
        self.bad, self.more = bad, more
        MADE.append(more)

    def fault(self, sample):
        pass

    def __call__(self, samples):
        keys = [sample["key"] for sample in samples]
        CALLS.append(keys)
        for sample in samples:
            if self.bad in sample["key"]:
                self.fault(sample)
        return [self.made(sample, keys) for sample in samples]

    def made(self, sample, keys):
        return {**sample, "call": " ".join(keys)}

class Raises(Recorder):
    def fault(self, sample):
        raise ValueError("no good")

class Leaves(Recorder):
    def fault(self, sample):
        if os.getpid() != int(os.environ.get("PARENT", "0")):
            os._exit(3)

class Segfaults(Recorder):
    def fault(self, sample):
        ctypes.string_at(0)

class NoMemory(Recorder):
    def fault(self, sample):
        raise MemoryError

class Drops(Recorder):
    def made(self, sample, keys):
        return None if self.bad in sample["key"] else super().made(sample, keys)

class Unfit(Recorder):
    def made(self, sample, keys):
        return {**super().made(sample, keys), "n": 1j if self.bad in sample["key"] else 1}

class Odd(Recorder):
    def made(self, sample, keys):
        return 3 if self.bad in sample["key"] else super().made(sample, keys)

class Twins(Recorder):
    def made(self, sample, keys):
        made = super().made(sample, keys)
        return [{**made, "half": 0}, {**made, "half": 1}]

class LeavesInCompany(Recorder):
    def __call__(self, samples):
        if len(samples) > 1:
            os._exit(3)
        return samples

class FailsInCompany(Recorder):
    def __call__(self, samples):
        np.stack([np.zeros(index) for index in range(len(samples))])
        return samples

class Short(Recorder):
    def __call__(self, samples):
        return samples[1:]

class Features:
    '''A vector of each image: its mean colour, `size` times.'''

    def __init__(self, size=2, dtype="float32"):
        self.size, self.dtype = size, dtype

    def __call__(self, samples):
        pixels = np.stack([sample.pop("image") for sample in samples]).astype(np.float64)
        means = np.tile(pixels.mean((1, 2)), (1, self.size)).astype(self.dtype)
        return [{**sample, "features": vector, "grid": vector.reshape(-1, 3)} for sample, vector in zip(samples, means)]

class NeedsMore:
    def __init__(self, weights):
        pass
    def __call__(self, samples):
        return samples

class NoCall:
    pass

class OddVersion(Recorder):
    version = 3

class StopsOnce(Recorder):
    def fault(self, sample):
        if not os.path.exists(os.environ["STOPPED"]):
            open(os.environ["STOPPED"], "w").close()
            raise KeyboardInterrupt

class Threads(Recorder):
    def made(self, sample, keys):
        return {**sample, "threads": os.environ.get("OMP_NUM_THREADS", "any")}

class Hangs(Recorder):
    def fault(self, sample):
        while True:
            pass

def seen(sample):
    sample["before"] = sample.get("call", "")
    return sample

def rejects(sample):
    if "05" in sample["key"]:
        raise ValueError("not this one")
    return sample
"""


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("models", None)
    monkeypatch.setenv("PARENT", str(os.getpid()))
    import models  # type: ignore[import-not-found]  # written above

    yield models
    sys.modules.pop("models", None)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return images(tmp_path / "in", *(f"{number:02d}.png" for number in range(14)))


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    for name in "ab":
        records = ({"n": n, "deep": [[n]]} for n in range(10))
        json_lines(tmp_path / "lines" / f"{name}.jsonl", records)
    return tmp_path / "lines"


def step(name: str, batch: int = 4, **arguments: Any) -> dict[str, Any]:
    return {"name": "model", "target": f"models:{name}", "batch": batch, "arguments": arguments}


def convert(
    source: Path,
    out: Path,
    *steps: dict[str, Any],
    recipe: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    given = {"store": "png", **(recipe or {})} if source.name == "in" else recipe or {}
    return shardctl.convert(
        source, out, recipe={**given, "transform": list(steps)}, **{"workers": 0, **options}
    )


def calls(out: Path, split: str = "train") -> dict[str, str]:
    """The keys that were in the call of each sample."""
    return {sample["key"]: sample["call"] for sample in shardctl.open(out, split=split)}


def rejected(out: Path) -> list[tuple[str, str]]:
    return [(reject.key, reject.error) for reject in rejects_of(out)]


def slots(names: list[str], size: int, without: str = "never") -> dict[str, str]:
    """What `calls` is where each `size` names are called together."""
    groups = [
        [name for name in names[at : at + size] if without not in name]
        for at in range(0, len(names), size)
    ]
    return {name: " ".join(group) for group in groups for name in group}


NAMES = [f"{number:02d}.png" for number in range(14)]


def slots_of_shards(out: Path, size: int, without: str = "never") -> dict[str, str]:
    """As `slots`, for a dataset of NAMES whose shards each begin with another slot."""
    shards = [pa.ipc.open_file(path).read_all()["key"].to_pylist() for path in shards_in(out)]
    starts = [NAMES.index(keys[0]) for keys in shards]
    assert len(starts) > 1
    groups = zip(starts, [*starts[1:], len(NAMES)], strict=True)
    return {
        key: call
        for first, end in groups
        for key, call in slots(NAMES[first:end], size, without).items()
    }


def test_a_call_has_the_samples_that_follow_each_other_in_the_shard(source, out):
    result = convert(source, out, step("Recorder"), samples_per_shard=6)
    assert calls(out) == slots_of_shards(out, 4)
    assert result.samples == 14


def test_the_object_is_made_once_in_a_process_with_its_arguments(source, tmp_path, models):
    convert(source, tmp_path / "out", step("Recorder", depth=18, names=["a"]), samples_per_shard=3)
    assert models.MADE == [{"depth": 18, "names": ["a"]}]


@pytest.mark.thorough
def test_with_workers_the_object_is_never_made_in_the_command(source, tmp_path, out, models):
    convert(source, out, step("Recorder"), samples_per_shard=6, workers=2)
    assert models.MADE == []
    convert(source, tmp_path / "out2", step("Recorder"), samples_per_shard=6)
    assert sums(out) == sums(tmp_path / "out2")


def test_the_option_takes_a_class_and_the_dataset_says_model(source, tmp_path, out, cli):
    given_ones = ("convert", source, out, "--workers", 0)
    ran = cli(*given_ones, *"--transform models:Recorder --store png".split())
    assert ran.code == 0
    assert shardctl.open(out).manifest.recipe["transform"] == [
        {"name": "model", "target": "models:Recorder", "batch": 32, "arguments": {}}
    ]
    (tmp_path / "shown.toml").write_text(cli("recipe", "show", out).out)
    assert "up to date" in cli(*given_ones, "--recipe", tmp_path / "shown.toml").out
    assert cli("recipe", "check", tmp_path / "shown.toml", "--import").code == 0


def test_what_decides_the_values_is_part_of_the_fingerprint(source, tmp_path, models):
    found = {convert(source, tmp_path / "0", step("Recorder")).fingerprint}
    found.add(convert(source, tmp_path / "1", step("Recorder", depth=1)).fingerprint)
    models.Recorder.version = "2"
    found.add(convert(source, tmp_path / "2", step("Recorder")).fingerprint)
    (tmp_path / "models.py").write_text(MODELS + "# changed\n")
    found.add(convert(source, tmp_path / "3", step("Recorder")).fingerprint)
    assert len(found) == 4


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("Raises", "ValueError"),
        ("Drops", "left-out"),
        ("Unfit", "other-type"),
        ("Odd", "not-a-sample"),
        ("NoMemory", "out-of-memory"),
    ],
)
@pytest.mark.thorough(after=2)
def test_a_rejected_record_is_in_no_call_whose_rows_are_stored(source, out, name, error):
    """So the same rows can be made again without it: a repair does not try it."""
    convert(source, out, step(name, bad="05"), samples_per_shard=8)
    assert rejected(out) == [("05.png", error)]
    assert calls(out) == slots_of_shards(out, 4, "05")
    repaired(out, name)


@pytest.mark.parametrize("place", ["before", "after"])
def test_functions_before_and_after_a_model_are_called_in_turn(source, out, place):
    function, seen = (
        {"name": "custom", "target": f"models:{name}"} for name in ("rejects", "seen")
    )
    before = place == "before"
    convert(
        source, out, *([function] * before), step("Recorder"), *([seen, function] * (not before))
    )
    assert calls(out) == slots(NAMES, 4, "05")
    assert rejected(out) == [("05.png", "ValueError")]
    if not before:
        assert all(sample["before"] == sample["call"] for sample in shardctl.open(out))


def test_two_models_each_have_calls_of_their_size(source, out, models):
    convert(source, out, step("Recorder", 2), step("Twins", 4))
    sizes = {len(call) for call in models.CALLS}
    assert max(sizes) == 4
    assert [sample["half"] for sample in shardctl.open(out)][:4] == [0, 1, 0, 1]


def test_a_damaged_image_leaves_its_place_in_the_slot_empty(source, out):
    (source / "05.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    convert(source, out, step("Recorder"))
    assert calls(out) == slots(NAMES, 4, "05")
    assert [key for key, _ in rejected(out)] == ["05.png"]


def test_variants_of_an_image_are_in_one_call(source, out):
    convert(source, out, {"name": "hflip"}, step("Recorder", 6), recipe={"variants": 3})
    found = [(sample["key"], sample["variant"], sample["call"]) for sample in shardctl.open(out)]
    assert found[3] == ("01.png", 0, "00.png 00.png 00.png 01.png 01.png 01.png")
    assert len(found) == 42


def test_records_of_a_file_are_called_by_their_numbers(lines, out):
    convert(lines, out, step("Raises", bad="a.jsonl#3"))
    keys = [[f"{name}.jsonl#{n}" for n in range(1, 11)] for name in "ab"]
    assert calls(out) == slots(keys[0], 4, "a.jsonl#3") | slots(keys[1], 4)
    assert rejected(out) == [("a.jsonl#3", "ValueError")]
    repaired(out, "Raises")


def test_of_a_file_whose_records_are_in_several_splits_those_of_one_are_called_together(lines, out):
    convert(lines, out, step("Raises", 3, bad="a.jsonl#3"), split="train=0.5,val=0.5")
    found = [calls(out, split) for split in ("train", "val")]
    numbered = [f"a.jsonl#{n}" for n in range(1, 11)]
    assert min(map(len, found)) > 3
    for of_split, others in (found, found[::-1]):
        own = [key for key in numbered if key in of_split]
        with_rejected = slots([key for key in numbered if key not in others], 3, "a.jsonl#3")
        assert {key: of_split[key] for key in own} in (slots(own, 3), with_rejected)
    repaired(out, "Raises")


def test_records_with_keys_of_their_own_are_called_with_those_of_their_split(lines, out):
    options: Any = {"recipe": {"key_field": "n", "kind": "table"}, "split": "train=0.5,val=0.5"}
    convert(lines / "a.jsonl", out, step("Raises", 3, bad="7"), **options)
    found = [calls(out, split) for split in ("train", "val")]
    assert sorted([*found[0], *found[1]]) == sorted(set("0123456789") - {"7"})
    for of_split, others in (found, found[::-1]):
        with_rejected = [key for key in "0123456789" if key not in others]
        assert of_split in (slots(list(of_split), 3), slots(with_rejected, 3, "7"))
    repaired(out, "Raises")


def test_records_that_are_shuffled_are_called_as_they_come(lines, out):
    convert(lines, out, step("Raises", bad="a.jsonl#3"), shuffle=1)
    found = calls(out)
    assert slots([f"b.jsonl#{n}" for n in range(1, 11)], 4).items() <= found.items()
    assert list(found) != sorted(found)
    repaired(out, "Raises")


def repaired(out: Path, name: str) -> None:
    """Make sure that all shards can be made again, byte by byte."""
    before = sums(out)
    for shard in shards_in(out):
        shard.unlink()
    assert shardctl.repair(out, transforms=[f"models:{name}"], workers=0).ok
    assert sums(out) == before


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(("name", "error"), [("Leaves", "exited"), ("Segfaults", "crashed")])
def test_a_record_that_ends_its_worker_is_found_and_no_other_is_lost(lines, out, name, error):
    result = convert(lines, out, step(name, bad="a.jsonl#5"), workers=1)
    assert rejected(out) == [("a.jsonl#5", error)]
    assert (
        slots([f"a.jsonl#{n}" for n in range(1, 11)], 4, "a.jsonl#5").items() <= calls(out).items()
    )
    assert (result.samples, result.rejected) == (19, 1)
    repaired(out, name)


@pytest.mark.thorough
def test_a_model_that_dies_of_no_single_record_ends_the_conversion(source, tmp_path):
    with pytest.raises(WorkerError, match=r"several inputs, from 00\.png on.*a lower batch"):
        convert(source, tmp_path / "out", step("LeavesInCompany"), workers=1)


@pytest.mark.parametrize(
    ("name", "says"),
    [("FailsInCompany", "4 inputs, not with each"), ("Short", "a list of length 0")],
)
def test_a_call_that_fails_for_no_single_record_ends_the_conversion(source, out, name, says):
    with pytest.raises(InputError, match=says):
        convert(source, out, step(name))


@pytest.mark.thorough(after=2)
@pytest.mark.parametrize(
    ("name", "arguments", "workers", "says"),
    [
        ("NoCall", {}, 0, "an ordinary method __call__"),
        ("OddVersion", {}, 0, r"it is 3 \(int\)"),
        ("NeedsMore", {}, 0, "making it failed: .* TypeError: .*'weights'"),
        ("NeedsMore", {"depth": 3}, 1, r'with arguments \{"depth": 3\} failed'),
        ("seen", {}, 0, "not a class"),
    ],
)
def test_a_class_that_cannot_be_used_is_refused(source, tmp_path, name, arguments, workers, says):
    with pytest.raises(UsageError, match=says):
        convert(source, tmp_path / "out", step(name, **arguments), workers=workers)


@pytest.mark.parametrize("arguments", [3, {"a": None}, {"a": float("nan")}])
def test_arguments_are_a_table_of_what_a_file_can_say(source, tmp_path, arguments):
    with pytest.raises(UsageError, match="arguments must be a table"):
        convert(source, tmp_path / "out", {**step("Recorder"), "arguments": arguments})


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_features_without_images_are_a_dataset_that_everything_reads(source, out, dtype, cli):
    labels = source / "labels.csv"
    rows = "".join(f"{name},{n % 2},{n}.5\n" for n, name in enumerate(NAMES))
    labels.write_text("file_name,label,weight\n" + rows)
    steps = ({"name": "resize", "size": "8x8"}, step("Features", dtype=dtype))
    options: Any = {"labels": str(labels), "samples_per_shard": 6}
    convert(source, out, *steps, recipe={"store": "none"}, **options)
    ds = shardctl.open(out)
    assert set(ds.schema.names) == {"key", "features", "grid", "label", "weight"}
    assert ds.schema.field("features").type == pa.list_(pa.from_numpy_dtype(np.dtype(dtype)), 6)
    assert [sample["weight"] for sample in ds][:2] == [0.5, 1.5]
    batch = next(iter(ds.loader(batch_size=5, shuffle=False)))
    assert (batch["features"].shape, batch["features"].dtype) == ((5, 6), np.dtype(dtype))
    assert batch["grid"].shape == (5, 2, 3)
    assert shardctl.verify(out, level="deep").ok
    assert cli("inspect", out, "--json").json["samples"] == 14
    repaired(out, "Features")


def test_store_none_needs_something_else_to_keep(source, tmp_path):
    with pytest.raises(UsageError, match="store none drops the images"):
        shardctl.convert(source, tmp_path / "out", recipe={"store": "none"}, workers=0)


def test_an_interrupted_conversion_ends_with_the_same_bytes(source, tmp_path, out, monkeypatch):
    monkeypatch.setenv("STOPPED", str(tmp_path / "stopped"))
    with pytest.raises(KeyboardInterrupt):
        convert(source, out, step("StopsOnce", bad="12"), samples_per_shard=3)
    for made in (out, tmp_path / "whole"):
        convert(source, made, step("StopsOnce", bad="12"), samples_per_shard=3)
    assert sums(out) == sums(tmp_path / "whole")


@pytest.mark.thorough
def test_a_record_for_which_a_model_never_ends_is_found(source, out):
    convert(source, out, step("Hangs", bad="05"), workers=1, input_timeout=0.5)
    assert rejected(out) == [("05.png", "timed-out")]
    assert calls(out) == slots(NAMES, 4, "05")


@pytest.mark.thorough
@pytest.mark.parametrize(("given", "threads"), [(None, "1"), ("3", "3")])
def test_workers_compute_in_one_thread_unless_the_environment_says_otherwise(
    source, out, monkeypatch, given, threads
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    convert(source, out, step("Threads"), workers=1)
    assert {sample["threads"] for sample in shardctl.open(out)} == {threads}


def test_whole_texts_are_called_together_too(tmp_path, out):
    (tmp_path / "texts").mkdir()
    names = [f"{n}.txt" for n in range(6)]
    for name in names:
        (tmp_path / "texts" / name).write_text("words " + name)
    convert(tmp_path / "texts", out, step("Raises", bad="1.txt"), recipe={"kind": "text"})
    assert calls(out) == slots(names, 4, "1.txt")
    repaired(out, "Raises")


def test_images_of_a_table_are_called_by_their_rows(source, out):
    (source / "05.png").write_bytes(b"broken")
    table = json_lines(source / "table.jsonl", ({"image": name} for name in NAMES))
    recipe = {"kind": "image", "store": "png"}
    convert(table, out, step("Raises", bad="#9"), recipe=recipe)
    keys = [f"table.jsonl#{n}" for n in range(1, 15)]
    assert calls(out) == {
        key: " ".join(each for each in call.split() if each != keys[5])
        for key, call in slots(keys, 4, "#9").items()
        if key != keys[5]
    }
    assert [key for key, _ in rejected(out)] == [keys[5], keys[8]]
    repaired(out, "Raises")


def test_a_preview_shows_what_a_model_makes(source, tmp_path):
    from shardctl.making.preview import make_preview

    preview = make_preview([source], {"transform": [step("Recorder")]}, 3, workers=0)
    assert [[record.values["call"] for record in each.samples] for each in preview.inputs] == [
        [each.key] for each in preview.inputs
    ]


def test_a_preview_of_images_that_are_not_stored_shows_what_a_model_gets(source, tmp_path, cli):
    recipe = ("--recipe", str(tmp_path / "r.toml"), "--html", tmp_path / "p.html", "--workers", "0")
    (tmp_path / "r.toml").write_text(
        'store = "none"\n[[transform]]\nname = "resize"\nsize = "8x8"\n'
        '[[transform]]\nname = "model"\ntarget = "models:Features"\n'
    )
    ran = cli("preview", source, *recipe)
    assert ran.code == 0
    assert "as your functions get them" in ran.out + ran.err
    assert "8x8" in (tmp_path / "p.html").read_text().replace(" x ", "x")


@pytest.mark.thorough
def test_the_example_of_the_docs_gives_the_features_of_a_plain_loop(source, tmp_path, out):
    pytest.importorskip("torch")
    page = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
    section = page.partition("\n## Models\n")[2]
    (tmp_path / "encoder.py").write_text(re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0])
    (tmp_path / "features.toml").write_text(
        re.findall(r"```toml\n(.*?)```", section, re.DOTALL)[0].replace("batch = 32", "batch = 4")
    )
    sys.modules.pop("encoder", None)
    shardctl.convert(source, out, recipe=str(tmp_path / "features.toml"), workers=0)
    kept = {"kind": "image", "store": "png", "transform": [{"name": "resize", "size": "224x224"}]}
    shardctl.convert(source, tmp_path / "pixels", recipe=kept, workers=0)
    from encoder import Encoder  # type: ignore[import-not-found]  # written above

    encoder, samples = Encoder(width=64), list(shardctl.open(tmp_path / "pixels"))
    made = [
        each
        for at in range(0, 14, 4)
        for each in encoder([dict(sample) for sample in samples[at : at + 4]])
    ]
    loaded = next(iter(shardctl.open(out).loader(batch_size=14, shuffle=False)))["features"]
    assert (loaded.shape, loaded.dtype) == ((14, 64), np.float32)
    assert (loaded == np.stack([sample["features"] for sample in made])).all()
    assert shardctl.verify(out, level="deep").ok
