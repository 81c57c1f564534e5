"""Samples that are made part by part, in several processes, or come from the datasets of other
libraries."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from dataset_facts import expect_whole, shards_of, sums
from doc_snippets import snippets_of
from followed_sources import write
from in_this_process import convert
from PIL import Image
from programs import run_python
from snapshots import wait_until
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
def test_the_order_is_that_of_the_parts_whoever_makes_them(tmp_path, out, limit):
    parts = range(25)
    here = shardctl.write(tmp_path / "here", rows, parts=parts, **limit)
    # processes are forked: it need not be a function that can be imported there
    there = shardctl.write(out, lambda part: rows(part), parts=parts, workers=3, **limit)
    assert here.samples == there.samples == len(expected(parts))
    assert sums(tmp_path / "here") == sums(out)
    assert plain(shardctl.open(out)) == expected(parts)
    expect_whole(out, "deep")
    assert not (out / ".shardctl").exists()
    counts = [entry.rows for entry in shards_of(out)]
    assert len(counts) == there.shards
    if "samples_per_shard" in limit:
        assert set(counts[:-1]) == {40}
    elif limit:
        assert 5 < len(counts) < 15  # of 25 parts: what is left over of them is put together
    else:
        assert len(counts) == 1


def test_splits_are_given_by_name_or_drawn_by_key(tmp_path):
    named, drawn, stream = (tmp_path / name for name in ("named", "drawn", "stream"))
    shardctl.write(named, rows, parts={"train": range(10), "val": range(10, 13)}, workers=2)
    assert {sample["part"] for sample in shardctl.open(named, "val")} == {10, 11, 12}
    shares = "train=0.8,val=0.2"
    shardctl.write(drawn, rows, parts=range(25), split=shares, workers=2)
    ds = shardctl.open(drawn)
    assert [facts.name for facts in ds.manifest.splits] == ["train", "val"]
    assert 0.1 < len(ds.in_split("val")) / len(ds) < 0.3
    shardctl.write(stream, ({"key": each["key"]} for each in expected(range(25))), split=shares)
    one, other = ([each["key"] for each in shardctl.open(out, "val")] for out in (drawn, stream))
    assert one == other
    expect_whole(drawn)


FAILS = r"^part 57 \(57\): sample 3: making it raised ValueError: no such frame"


MISFITS = r"^part 57 \(57\): sample 0 \(00057-000000000\): the field number is 1.5 \(float\)"


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
        (failing, 0, InputError, FAILS),
        (failing, 2, InputError, FAILS),
        (misfit, 2, InputError, MISFITS),
        (ending, 2, WorkerError, "ended within a part"),
        (lambda part: [{"key": "a"}], 2, InputError, "the samples 0 and 1 have the key a"),
        (lambda part: [], 2, InputError, "there is no sample to write: no part has one"),
        (lambda part: 5, 0, UsageError, "samples are an iterable of dicts"),
    ],
)
def test_what_goes_wrong_is_named_and_nothing_is_there(make, workers, error, message, out):
    with pytest.raises(error, match=message) as raised:
        shardctl.write(out, make, parts=range(60), workers=workers)
    if make in (failing, misfit, ending):
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
        ({"train": [{"n": 1}]}, {"split": "a=0.5,b=0.5"}, "."),
        (rows, {"parts": {"train": [1]}, "split": "val"}, "."),
        (rows, {"parts": 5}, "."),
        (rows, {"parts": {"train": 5}}, "."),
        (rows, {"parts": {1: [1]}}, "."),
        (rows, {"parts": [1], "split": 5}, "."),
        ([(1, 2)], {"fields": ("i", "i")}, "."),
        ([{"a": 1}], {"schema": {"a": "int"}}, "."),
        ([{"label": "a"}], {"classes": "ab"}, "."),
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
    write(tmp_path / "make.py", textwrap.dedent(MAKING))
    command, log = [sys.executable, "make.py"], tmp_path / "made.txt"

    def done() -> set[int]:
        return {int(path.stem) for path in out.glob(".shardctl/write-*/done/*.json")}

    with subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        wait_until(lambda: len(done()) >= 4)
        process.send_signal(how)
        _, err = process.communicate(timeout=30)  # all that had its stderr are gone
    assert how is signal.SIGKILL or "interrupted; " in err
    left = set(range(12)) - done()
    assert left
    with pytest.raises(DatasetError, match=r"holds \d+ of 12 parts of a call of"):
        shardctl.write(out, rows, parts=[1])
    log.unlink()
    subprocess.run(command, cwd=tmp_path, check=True)
    made = {int(line) for line in log.read_text().splitlines()}
    assert made - {0, 1} == left - {0, 1}
    samples = [(sample["part"], sample["number"]) for sample in shardctl.open(out)]
    assert samples == [(part, number) for part in range(12) for number in range(10)]
    expect_whole(out)


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


def test_values_have_names_or_get_them(out):
    for samples, fields, said in (
        (Indexed(), None, "is a tuple of 2 values; name them, as in fields="),
        (Indexed(), ["image"], "has 2 values, and fields= names 1"),
        ([{"a": 1}], ["b"], "is a dict, so its values have names"),
    ):
        with pytest.raises(InputError, match=said):
            shardctl.write(out, samples, fields=fields)


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
    shardctl.write(out, dataset)
    ds = shardctl.open(out)
    assert ds.classes == ("cat", "dog")
    for number, sample in enumerate(ds):
        assert (sample["label"], sample["caption"]) == (number % 2, f"photo {number}")
        assert (sample["image"] == pixels(number)).all()
    shardctl.write(tmp_path / "kept", dataset.cast_column("image", datasets.Image(decode=False)))
    assert shardctl.open(tmp_path / "kept").manifest.fields["image"]["store"] == "source"
    splits = datasets.DatasetDict({"train": dataset, "test": dataset.select(range(0))})
    with pytest.raises(InputError, match="the split test has no sample"):
        shardctl.write(tmp_path / "splits", splits)


@pytest.mark.thorough
def test_the_page_about_it_works_as_it_is_written(tmp_path, out):
    (example,) = snippets_of("write.md", "python")
    for name, numbers in (("a.txt", range(50)), ("b.txt", range(50, 80))):
        write(tmp_path / name, "".join(f"{number}\n" for number in numbers))
    run_python(example, cwd=tmp_path, check=True)
    found = sorted((sample["number"], sample["square"]) for sample in shardctl.open(out))
    assert found == [(n, n * n) for n in range(80)]


@pytest.mark.thorough
def test_calls_in_two_threads_do_not_meet(tmp_path):
    def make(name: str) -> None:
        shardctl.write(tmp_path / name, rows, parts=range(20), samples_per_shard=30)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(make, "abcd"))
    for name in "abcd":
        assert plain(shardctl.open(tmp_path / name)) == expected(range(20))
        expect_whole(tmp_path / name)


def test_the_function_is_called_in_other_processes_alone(out):
    """A library that has threads of its own does not work in a fork of a process that has used
    it."""
    shardctl.write(out, lambda part: [{"process": os.getpid()}], parts=range(9), workers=2)
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
    def run(more: str = "", **values: int) -> subprocess.CompletedProcess[str]:
        write(tmp_path / "own_dataset.py", OWN_DATASET.format(**values))
        call = f"shardctl.write('out', own_dataset.Numbers(), workers=1{more})"
        return run_python(f"import shardctl, own_dataset; {call}", cwd=tmp_path)

    said = "sample 8,500: making it raised ValueError: no such number"
    assert said in run(fails=8500, n=1).stderr
    said = "with other arguments or code; overwrite=True starts over"
    assert said in run(fails=-1, n=2).stderr
    assert run(", overwrite=True", fails=-1, n=2).returncode == 0
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
    values = np.random.default_rng(0).integers(0, 256, (8, 8, 4), np.uint8)
    if mode == "F":
        picture = Image.fromarray(values[..., 0].astype(np.float32) / 255)
    elif mode == "I;16":
        picture = Image.fromarray(values[..., 0].astype(np.uint16) * 250)
    else:
        picture = Image.fromarray(values, "RGBA")
        picture = picture if mode == "RGBA" else picture.convert("RGB").convert(mode)
    picture.save(tmp_path / f"a.{'tiff' if mode == 'F' else 'png'}")
    raw = {"store": "raw", "transform": [{"name": "crop", "size": 8}]}
    convert(next(tmp_path.glob("a.*")), tmp_path / "converted", raw)
    shardctl.write(tmp_path / "written", [{"image": picture}])
    one, other = (shardctl.open(tmp_path / name)[0]["image"] for name in ("converted", "written"))
    assert (one == other).all()
