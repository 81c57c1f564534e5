"""Samples that are made part by part, in several processes, or come from the datasets of other
libraries."""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataset_facts import shards_of, sums
from in_this_process import convert
from PIL import Image
from written_samples import pixels, plain

import shardctl
from shardctl.errors import DatasetError, InputError, UsageError, WorkerError

Sample = dict[str, Any]


def rows(part: int) -> Iterator[Sample]:
    """Some parts have many samples, some few, and one has none."""
    buffer = np.zeros(5, np.int32)
    for number in range(part * 7 % 60):
        buffer[:] = part * 100 + number
        yield {
            "part": part,
            "number": number,
            "text": f"text {part} {number}" * (number % 9),
            "values": buffer,
        }


def expected(parts: range) -> list[Sample]:
    return [
        {"key": f"{part:05d}-{number:09d}", **sample, "values": [part * 100 + number] * 5}
        for part in parts
        for number, sample in enumerate(rows(part))
    ]


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("limit", [{}, {"samples_per_shard": 40}, {"shard_size": 8192}])
def test_the_order_is_that_of_the_parts_whoever_makes_them(tmp_path, limit):
    parts = range(25)
    here = shardctl.write(tmp_path / "here", rows, parts=parts, **limit)
    there = shardctl.write(tmp_path / "there", rows, parts=parts, workers=3, **limit)
    assert (
        (here.samples, here.shards)
        == (there.samples, there.shards)
        == (len(expected(parts)), here.shards)
    )
    assert sums(tmp_path / "here") == sums(tmp_path / "there")
    assert plain(shardctl.open(tmp_path / "there")) == expected(parts)
    assert shardctl.verify(tmp_path / "there", "deep").findings == ()
    assert not (tmp_path / "there" / ".shardctl").exists()
    entries = shards_of(tmp_path / "there")
    if "samples_per_shard" in limit:
        assert [entry.rows for entry in list(entries)[:-1]] == [40] * (len(entries) - 1)
    elif limit:
        assert 5 < len(entries) < 15  # of 25 parts: what is left over of them is put together
    else:
        assert len(entries) == 1


def test_any_function_will_do(out):
    """Processes are forked: it need not be one that can be imported there."""
    offset = 5
    shardctl.write(out, lambda part: [{"n": part + offset}], parts=[1, 2], workers=2)
    assert [sample["n"] for sample in shardctl.open(out)] == [6, 7]


def test_splits_are_given_by_name_or_drawn_by_key(tmp_path):
    shardctl.write(
        tmp_path / "named", rows, parts={"train": range(10), "val": range(10, 13)}, workers=2
    )
    assert {sample["part"] for sample in shardctl.open(tmp_path / "named", "val")} == {10, 11, 12}
    shardctl.write(tmp_path / "drawn", rows, parts=range(25), split="train=0.8,val=0.2", workers=2)
    ds = shardctl.open(tmp_path / "drawn")
    assert [facts.name for facts in ds.manifest.splits] == ["train", "val"]
    assert 0.1 < len(ds.in_split("val")) / len(ds) < 0.3
    stream = ({"key": sample["key"]} for sample in expected(range(25)))
    shardctl.write(tmp_path / "stream", stream, split="train=0.8,val=0.2")
    keys = [
        [sample["key"] for sample in shardctl.open(tmp_path / name, "val")]
        for name in ("drawn", "stream")
    ]
    assert keys[0] == keys[1]
    assert shardctl.verify(tmp_path / "drawn").findings == ()


def failing(part: int) -> Iterator[Sample]:
    for sample in rows(part):
        if (part, sample["number"]) == (57, 3):
            raise ValueError("no such frame")
        yield sample


def misfit(part: int) -> Iterator[Sample]:
    for sample in rows(part):
        yield {**sample, "number": 1.5} if part == 57 else sample


def ending(part: int) -> Iterator[Sample]:
    if part == 57:
        os.kill(os.getpid(), signal.SIGKILL)
    return rows(part)


@pytest.mark.thorough(after=3)
@pytest.mark.parametrize(
    ("make", "workers", "error", "message"),
    [
        (
            failing,
            0,
            InputError,
            r"^part 57 \(57\): sample 3: making it raised ValueError: no such frame",
        ),
        (
            failing,
            2,
            InputError,
            r"^part 57 \(57\): sample 3: making it raised ValueError: no such frame",
        ),
        (
            misfit,
            2,
            InputError,
            r"^part 57 \(57\): sample 0 \(00057-000000000\): the field number is 1.5 \(float\)",
        ),
        (ending, 2, WorkerError, "ended within a part"),
        (
            lambda part: [{"key": "same"}],
            2,
            InputError,
            "the samples 0 and 1 have the key same",
        ),
        (lambda part: [], 2, InputError, "there is no sample to write: no part has one"),
        (lambda part: 5, 0, UsageError, "samples are an iterable of dicts"),
    ],
)
def test_what_goes_wrong_is_named_and_nothing_is_there(make, workers, error, message, out):
    with pytest.raises(error, match=message) as raised:
        shardctl.write(out, make, parts=range(60), workers=workers)
    if error is not UsageError and "key" not in message and "no part" not in message:
        assert "of 60 parts done; the same call goes on with the others" in str(raised.value)
    with pytest.raises(DatasetError):
        shardctl.open(out)


@pytest.mark.parametrize(
    ("samples", "options", "message"),
    [
        (rows(1), {"parts": [1]}, "samples is a function that yields those of a part"),
        (rows, {"parts": []}, "parts= is empty"),
        (rows(1), {"workers": 2}, "workers= needs parts="),
        (rows, {"parts": [1], "workers": -1}, "workers must be 0 or more"),
        (rows(1), {"split": "train=0.5"}, "must be over 0 and add up to 1"),
        (7, {}, "samples are an iterable of dicts, or a dataset"),
    ],
)
def test_arguments_that_do_not_fit_are_wrong_usage(samples, options, message, out):
    with pytest.raises(UsageError, match=message):
        shardctl.write(out, samples, **options)


MAKING = """
    import time
    import pyarrow as pa, shardctl

    def slowly(part):
        with open("made.txt", "a") as made:
            made.write(f"{part}\\n")
        for number in range(10):
            time.sleep(0.01)
            yield {"part": part, "number": number}

    shardctl.write("out", slowly, pa.schema([("part", pa.int64()), ("number", pa.int64())]), parts=range(12), workers=2)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_the_same_call_goes_on_after_it_was_stopped(tmp_path, out, how):
    """Parts that were done are not made again, but for the first two, of which some samples are
    looked at; no process stays."""
    (tmp_path / "make.py").write_text(textwrap.dedent(MAKING))
    command = [sys.executable, "make.py"]
    with subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        until = time.monotonic() + 60
        while sum(1 for _ in tmp_path.glob("out/.shardctl/write-*/done/*.json")) < 4:
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(how)
        _, err = process.communicate(timeout=30)  # all that had its stderr are gone
    if how is signal.SIGINT:
        assert "interrupted; " in err
    done = {int(path.stem) for path in tmp_path.glob("out/.shardctl/write-*/done/*.json")}
    assert 4 <= len(done) < 12
    with pytest.raises(DatasetError, match=r"holds \d+ of 12 parts of a call of shardctl\.write"):
        shardctl.write(out, rows, parts=[1])
    (tmp_path / "made.txt").unlink()
    subprocess.run(command, cwd=tmp_path, check=True)
    made = [int(line) for line in (tmp_path / "made.txt").read_text().splitlines()]
    assert set(made) - {0, 1} == set(range(12)) - done - {0, 1}
    samples = [(sample["part"], sample["number"]) for sample in shardctl.open(out)]
    assert samples == [(part, number) for part in range(12) for number in range(10)]
    assert shardctl.verify(out).findings == ()


class Indexed:
    """A map-style dataset as PyTorch has them: no end but its length."""

    classes = ("cat", "dog")

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return Image.fromarray(pixels(index)), index % 2


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_by_index_is_written(tmp_path, out, workers):
    shardctl.write(out, Indexed(), fields=("image", "label"), workers=workers)
    ds = shardctl.open(out)
    assert (len(ds), ds.classes) == (30, ("cat", "dog"))
    assert all((sample["image"] == pixels(index)).all() for index, sample in enumerate(ds))
    with pytest.raises(
        InputError, match=r"sample 0 is a tuple of 2 values; name them, as in fields="
    ):
        shardctl.write(tmp_path / "other", Indexed())
    with pytest.raises(InputError, match=r"sample 0 has 2 values, and fields= names 1"):
        shardctl.write(tmp_path / "other", Indexed(), fields=["image"])


def test_a_partial_with_other_arguments_is_another_call(out):
    shardctl.write(out, functools.partial(scaled, factor=2), parts=[1, 2])
    shardctl.write(out, functools.partial(scaled, factor=3), parts=[1, 2], overwrite=True)
    assert [sample["n"] for sample in shardctl.open(out)] == [3, 6]


def scaled(part: int, factor: int) -> list[Sample]:
    return [{"n": part * factor}]


def test_datasets_of_torch_are_written(out):
    torch = pytest.importorskip("torch")
    tensors = torch.utils.data.TensorDataset(torch.arange(40).reshape(20, 2), torch.arange(20))
    shardctl.write(out, tensors, fields=("pair", "number"), workers=2)
    ds = shardctl.open(out)
    assert [(sample["pair"].tolist(), sample["number"]) for sample in ds] == [
        ([2 * n, 2 * n + 1], n) for n in range(20)
    ]


@pytest.mark.thorough
def test_datasets_of_tensorflow_are_written(out):
    tensorflow = pytest.importorskip("tensorflow")
    dataset = tensorflow.data.Dataset.from_tensor_slices(
        {"n": list(range(20)), "text": [f"t{n}" for n in range(20)]}
    )
    shardctl.write(out, dataset)
    assert [(sample["n"], sample["text"]) for sample in shardctl.open(out)] == [
        (n, f"t{n}".encode()) for n in range(20)
    ]


def test_datasets_of_hugging_face_are_written(tmp_path, out):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        image=datasets.Image(),
        label=datasets.ClassLabel(names=["cat", "dog"]),
        caption=datasets.Value("string"),
    )
    made = [
        {"image": Image.fromarray(pixels(n)), "label": n % 2, "caption": f"photo {n}"}
        for n in range(10)
    ]
    dataset = datasets.Dataset.from_list(made, features=features)
    splits = datasets.DatasetDict({"train": dataset, "test": dataset.select(range(0))})
    shardctl.write(out, dataset)
    ds = shardctl.open(out)
    assert (ds.classes, [sample["caption"] for sample in ds]) == (
        ("cat", "dog"),
        [f"photo {n}" for n in range(10)],
    )
    assert all((sample["image"] == pixels(index)).all() for index, sample in enumerate(ds))
    raw = dataset.cast_column("image", datasets.Image(decode=False))
    shardctl.write(tmp_path / "kept", raw)
    assert shardctl.open(tmp_path / "kept").manifest.fields["image"]["store"] == "source"
    with pytest.raises(InputError, match="the split test has no sample"):
        shardctl.write(tmp_path / "splits", splits)


@pytest.mark.thorough
def test_the_page_about_it_works_as_it_is_written(tmp_path, out):
    page = (Path(__file__).parents[2] / "docs" / "write.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for name, numbers in (("a.txt", range(50)), ("b.txt", range(50, 80))):
        (tmp_path / name).write_text("".join(f"{number}\n" for number in numbers))
    subprocess.run([sys.executable, "-c", example], cwd=tmp_path, check=True)
    ds = shardctl.open(out)
    assert sorted((sample["number"], sample["square"]) for sample in ds) == [
        (n, n * n) for n in range(80)
    ]


@pytest.mark.thorough
def test_calls_in_two_threads_do_not_meet(tmp_path):
    def write(name: str) -> None:
        shardctl.write(tmp_path / name, rows, parts=range(20), samples_per_shard=30)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in "abcd":
        assert plain(shardctl.open(tmp_path / name)) == expected(range(20))
        assert shardctl.verify(tmp_path / name).findings == ()


def test_the_function_is_called_in_other_processes_alone(out):
    """A library that has threads of its own does not work in a fork of a process that has used
    it."""
    shardctl.write(
        out,
        lambda part: [{"part": part, "process": os.getpid()}],
        parts=range(9),
        workers=2,
    )
    assert os.getpid() not in {sample["process"] for sample in shardctl.open(out)}


OWN_DATASET = """
class Numbers:
    def __len__(self):
        return 9000
    def __getitem__(self, index):
        if index == {fails}:
            raise ValueError("no such number")
        return {{"n": {n}}}
"""


@pytest.mark.thorough
def test_parts_of_code_that_has_changed_since_are_not_mixed_with_others(tmp_path, out):
    script = (
        f"import shardctl, own_dataset; shardctl.write({str(out)!r}, "
        "own_dataset.Numbers(), workers=1"
    )

    def run(more: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", f"{script}{more})"], cwd=tmp_path, capture_output=True, text=True
        )

    (tmp_path / "own_dataset.py").write_text(OWN_DATASET.format(fails=8500, n=1))
    assert "sample 8,500: making it raised ValueError: no such number" in run().stderr
    (tmp_path / "own_dataset.py").write_text(OWN_DATASET.format(fails=-1, n=2))
    assert "with other arguments or code; overwrite=True starts over" in run().stderr
    assert run(", overwrite=True").returncode == 0
    assert {sample["n"] for sample in shardctl.open(out)} == {2}


@pytest.mark.thorough
def test_a_call_that_nothing_can_recognise_begins_anew(out):
    for _ in range(2):
        with pytest.raises(InputError, match="begins anew, as its code may differ"):
            shardctl.write(out, lambda part: failing(part), parts=range(60))
    shardctl.write(out, lambda part: rows(part), parts=range(60))
    assert plain(shardctl.open(out)) == expected(range(60))


@pytest.mark.parametrize("mode", ["RGBA", "F", "I;16", "L", "P"])
def test_pictures_become_what_a_conversion_makes_of_them(mode, tmp_path):
    if mode == "F":
        picture = Image.fromarray(np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8))
    elif mode == "I;16":
        picture = Image.fromarray((np.arange(64, dtype=np.uint16) * 1000).reshape(8, 8))
    else:
        values = np.random.default_rng(0).integers(0, 256, (8, 8, 4), np.uint8)
        picture = (
            Image.fromarray(values, "RGBA")
            if mode == "RGBA"
            else Image.fromarray(values[..., :3]).convert(mode)
        )
    (tmp_path / "in").mkdir()
    picture.save(tmp_path / "in" / ("a.tiff" if mode == "F" else "a.png"))
    convert(
        tmp_path / "in",
        tmp_path / "converted",
        {"store": "raw", "transform": [{"name": "crop", "size": 8}]},
    )
    shardctl.write(tmp_path / "written", [{"image": picture}])
    one, other = (shardctl.open(tmp_path / name)[0]["image"] for name in ("converted", "written"))
    assert (one == other).all()


def test_keys_and_splits_do_not_depend_on_workers(tmp_path):
    for workers in (0, 2):
        shardctl.write(
            tmp_path / str(workers),
            Indexed(),
            fields=("image", "label"),
            workers=workers,
            split="train=0.5,val=0.5",
        )
    one, other = (
        [sample["key"] for sample in shardctl.open(tmp_path / name, "val")] for name in ("0", "2")
    )
    assert one == other


@pytest.mark.parametrize(
    ("samples", "options"),
    [
        ({"train": [{"n": 1}]}, {"split": "a=0.5,b=0.5"}),
        (rows, {"parts": {"train": [1]}, "split": "val"}),
        (rows, {"parts": 5}),
        (rows, {"parts": {"train": 5}}),
        (rows, {"parts": {1: [1]}}),
        (rows, {"parts": [1], "split": 5}),
        ([(1, 2)], {"fields": ("i", "i")}),
        ([{"a": 1}], {"schema": {"a": "int"}}),
        ([{"label": "a"}], {"classes": "ab"}),
    ],
)
def test_what_contradicts_itself_is_wrong_usage(samples, options, out):
    with pytest.raises(UsageError):
        shardctl.write(out, samples, **options)
    with pytest.raises(InputError, match="is a dict, so its values have names"):
        shardctl.write(out, [{"a": 1}], fields=["b"])
