"""Inputs that workers die of: a real segfault, real exhaustion of memory, a real endless loop."""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from custom_steps import FATAL
from dataset_facts import rejects_of, sums
from image_files import images
from PIL import Image

import shardctl
from shardctl.errors import InputError, SourceGoneError, WorkerError
from shardctl.format.shard import ShardWriter
from shardctl.making.convert import Listener
from shardctl.making.shards import inputs


@pytest.fixture(scope="module")
def fatal_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all tests: processes that workers are forked from are used again where the
    path is the same."""
    folder = tmp_path_factory.mktemp("fatal_steps")
    (folder / "fatal_steps.py").write_text(FATAL)
    return folder


@pytest.fixture(autouse=True)
def steps(fatal_steps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(fatal_steps)
    monkeypatch.delitem(sys.modules, "fatal_steps", raising=False)


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have modules in the folder of the test found."""
    monkeypatch.syspath_prepend(tmp_path)


def recipe(function: str) -> dict[str, Any]:
    return {"store": "png", "transform": [{"name": "custom", "target": f"fatal_steps:{function}"}]}


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(
    ("function", "error", "message", "options"),
    [
        ("segfault", "crashed", "was ended by SIGSEGV every time", {}),
        (
            "exhaust",
            "out-of-memory",
            "needs more memory than there is, or than --worker-memory allows",
            {"worker_memory": 512 << 20},
        ),
        ("exhaust_in_c", "crashed", "was ended by SIGABRT every time", {}),
        ("loop", "timed-out", "took longer than 1 s; --input-timeout", {"input_timeout": 1.0}),
        ("leave", "exited", "ended with exit code 3 every time", {}),
        (
            "killed",
            "killed",
            "was ended by SIGKILL every time it processed it, as systems do when memory runs out",
            {},
        ),
    ],
)
def test_a_fatal_input_is_found_and_rejected_and_the_rest_is_converted(
    tmp_path, out, function, error, message, options
):
    """Among 30 inputs, 3 of them fatal, so that several shards and the inputs that are tried
    beforehand have some."""
    names = [f"{n:02d}.png" for n in range(30)]
    source = images(tmp_path / "in", *names)
    limits = {"samples_per_shard": 10, "workers": 2, **options}
    result = shardctl.convert(source, out, recipe=recipe(function), **limits)
    fatal = [name for name in names if "7" in name]
    rejects = rejects_of(out)
    assert [reject.key for reject in rejects] == fatal
    assert {(reject.stage, reject.error) for reject in rejects} == {("transform", error)}
    assert all(message in reject.message for reject in rejects)
    assert [sample["key"] for sample in shardctl.open(out)] == [
        name for name in names if name not in fatal
    ]
    assert (result.samples, result.rejected) == (30 - len(fatal), len(fatal))
    assert shardctl.verify(out).findings == ()


UNREADABLE = """
import ctypes, os
from shardctl.making.shards import builder

read = builder.read_unit

def fatal(job, planned, *arguments):
    if planned.file.path == "2.jsonl":
        ctypes.string_at(0)
    return read(job, planned, *arguments)

builder.read_unit = fatal

def same(sample):
    return sample

def large(sample):
    return {**sample, "blob": b"x" * (sample["n"] == 1400) * (120 << 20)}
"""


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, importable: None) -> Path:
    """Files with ten records each, and steps of which one stands for a fault of a library that
    reads."""
    (tmp_path / "table_steps.py").write_text(UNREADABLE)
    # for the workers alone
    monkeypatch.setitem(sys.modules, "table_steps", types.ModuleType("table_steps"))
    for name in ("same", "large"):
        setattr(sys.modules["table_steps"], name, lambda sample: sample)
    (tmp_path / "in").mkdir()
    for number in range(4):
        (tmp_path / "in" / f"{number}.jsonl").write_text(
            "".join(f'{{"n": {n}}}\n' for n in range(10))
        )
    return tmp_path / "in"


def test_a_unit_that_ends_every_worker_that_reads_it_is_rejected(tables, out):
    steps = {"transform": [{"name": "custom", "target": "table_steps:same"}]}
    result = shardctl.convert(tables, out, recipe=steps, workers=1)
    assert (result.samples, result.rejected) == (30, 10)
    assert {(reject.source, reject.error) for reject in rejects_of(out)} == {("2.jsonl", "crashed")}


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(
    ("names", "times"), [(["00", "01", "37"], 2), (["00", "07", "17", "18", "27", "37"], 3)]
)
def test_a_shard_is_not_built_again_for_every_fatal_input(tmp_path, out, monkeypatch, names, times):
    """Once more for the first; then those after it are looked for without writing, and the last
    time is the real one."""
    source = images(tmp_path / "in", *(f"{name}.png" for name in names))
    log = tmp_path / "log"
    monkeypatch.setenv("FATAL_LOG", str(log))
    # what was tried beforehand does not count
    listener = Listener(announce=lambda estimate: log.unlink(missing_ok=True))
    options: dict[str, Any] = {"workers": 1, "max_rejects": "100%"}
    shardctl.convert(source, out, recipe=recipe("log_and_leave"), listener=listener, **options)
    tried = log.read_text().split()
    assert tried.count("00.png") == times
    assert {tried.count(f"{name}.png") for name in names if "7" in name} == {2}


def test_inputs_that_all_kill_their_worker_are_told_with_the_last_death(tmp_path, out):
    source = images(tmp_path / "in", "7.png")
    with pytest.raises(
        InputError,
        match=r"none of 1 input came through the recipe, the last one because: .* exit code 3 "
        r"every",
    ):
        shardctl.convert(source, out, recipe=recipe("leave"), workers=1)


def test_an_innocent_input_is_not_given_up_for_one_accident(tmp_path, monkeypatch):
    source = images(tmp_path / "in", *(f"{n}.png" for n in range(9)))
    monkeypatch.setenv("KILLED_ONCE", str(tmp_path / "once"))
    for out in ("killed", "undisturbed"):
        shardctl.convert(source, tmp_path / out, recipe=recipe("killed_once"), workers=1)
    assert (tmp_path / "once").exists()
    assert sums(tmp_path / "killed") == sums(tmp_path / "undisturbed")


@pytest.mark.usefixtures("importable")
def test_workers_that_cannot_even_start_end_the_job_with_their_last_words(tmp_path, out):
    """Not hanging, not succeeding."""
    source = images(tmp_path / "in", "1.png")
    (tmp_path / "sitecustomize.py").write_text(
        "import os; os.write(2, b'broken installation'); os._exit(1)"
    )
    with pytest.raises(
        WorkerError,
        match=r"4 worker processes in a row .* not at one of their inputs: broken installation",
    ):
        shardctl.convert(source, out, workers=2)
    assert not out.exists()


def test_what_a_function_prints_is_shown_on_stderr_when_more_is_asked_for(tmp_path, out, cli):
    source = images(tmp_path / "in", "a.png", "b.png")
    command = (
        "convert",
        source,
        out,
        "--transform",
        "fatal_steps:talk",
        "--workers",
        "2",
        "--overwrite",
    )
    quiet = cli(*command)
    assert "working" not in quiet.out + quiet.err
    loud = cli(*command, "-v", "--json")
    assert loud.json["samples"] == 2
    assert "worker 1: working on a.png \\x1b[2J\n" in loud.err


def test_a_file_in_the_current_folder_takes_the_place_of_no_module(tmp_path, cli, monkeypatch):
    """The current folder may be a dataset of somebody else; people's functions are found in it all
    the same."""
    here = tmp_path / "here"
    images(here / "in", "a.png")
    (here / "wave.py").write_text("raise SystemExit(9)")
    (here / "found_here.py").write_text("from fatal_steps import where_from")
    monkeypatch.chdir(here)
    ran = cli("convert", "in", "out", "--transform", "found_here:where_from", "--workers", "1")
    assert (ran.code, ran.err.count("rejected")) == (0, 0), ran.err
    assert len(shardctl.open("out")) == 1


STALLS = """
import os, signal, time
from shardctl.making.shards import inputs
from shardctl.format.shard import ShardWriter

AT = os.environ["STALL_AT"]
_read, _read_range, _write, _add = inputs.read_file, inputs._read_range, ShardWriter._write_block, ShardWriter.add

def stall(path):
    if os.path.exists(os.path.join(AT, "source")) or ("7" in os.path.basename(path) and os.path.exists(os.path.join(AT, "7"))):
        time.sleep(60)

def read(path, size):
    stall(path)
    return _read(path, size)

def read_range(path, offset, size):
    stall(path)
    return _read_range(path, offset, size)

def write(self):
    time.sleep(1.5 * os.path.exists(os.path.join(AT, "slow")))
    if os.path.exists(os.path.join(AT, "memory")) and self._pending_bytes > 4_000_000:
        raise MemoryError
    if os.path.exists(os.path.join(AT, "no memory")):
        raise MemoryError
    if (kills := os.listdir(os.path.join(AT, "kills"))):
        os.unlink(os.path.join(AT, "kills", kills[0]))
        os.kill(os.getpid(), signal.SIGKILL)
    return _write(self)

def add(self, values, size):
    if os.path.exists(os.path.join(AT, "slow")):
        self._block_bytes = size + 1
    _add(self, values, size)

inputs.read_file, inputs._read_range, ShardWriter._write_block, ShardWriter.add = read, read_range, write, add

def same(sample):
    return sample
"""
STALLING = {"store": "png", "transform": [{"name": "custom", "target": "stalls:same"}]}


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, importable: None) -> Path:
    """A folder of what is to go wrong in the workers: they put their own reading and writing in the
    place of ours.

    `source`: no read returns. `7`: no read of an input with a 7 does. `slow`: blocks of one sample
    take 1.5 s. `kills/`: so many workers are killed while they write. `memory`: none for large
    blocks, `no memory`: none at all.
    """
    (tmp_path / "stalls.py").write_text(STALLS)
    (tmp_path / "at" / "kills").mkdir(parents=True)
    monkeypatch.setenv("STALL_AT", str(tmp_path / "at"))
    monkeypatch.delitem(sys.modules, "stalls", raising=False)
    for owner, name in (
        (inputs, "read_file"),
        (inputs, "_read_range"),
        (ShardWriter, "_write_block"),
        (ShardWriter, "add"),
    ):
        # put back in this process, which imports the functions too
        monkeypatch.setattr(owner, name, getattr(owner, name))
    return tmp_path / "at"


@pytest.mark.thorough
def test_a_source_that_does_not_answer_stops_the_job_and_rejects_nothing(tmp_path, out, at):
    source = images(tmp_path / "in", *(f"{n:02d}.png" for n in range(6)))
    options: dict[str, Any] = {
        "recipe": STALLING,
        "samples_per_shard": 3,
        "workers": 1,
        "input_timeout": 1.0,
    }
    shardctl.convert(source, tmp_path / "whole", **options)

    def stall(estimate: Any) -> None:
        (at / "source").touch()

    said = (
        r"in: the source does not respond: 00.png, then 01.png, took longer than 1 "
        r"s; .* input_timeout\. 0 of 2"
    )
    with pytest.raises(SourceGoneError, match=said):
        shardctl.convert(source, out, listener=Listener(announce=stall), **options)
    (at / "source").unlink()
    assert shardctl.convert(source, out, **options).status == "resumed"
    assert sums(out) == sums(tmp_path / "whole")


@pytest.mark.thorough
def test_an_input_that_cannot_be_read_in_time_is_rejected_where_others_of_its_source_can(
    tmp_path, out, at
):
    (at / "7").touch()
    source = images(tmp_path / "in", *(f"{n:02d}.png" for n in range(9)))
    result = shardctl.convert(source, out, recipe=STALLING, workers=1, input_timeout=1.0)
    (reject,) = rejects_of(out)
    assert (reject.key, reject.stage, reject.error, result.samples) == (
        "07.png",
        "read",
        "timed-out",
        8,
    )


@pytest.mark.thorough
def test_a_slow_disk_at_the_destination_is_no_fault_of_an_input(tmp_path, out, at):
    """A block is written when the second one does not fit into it, and another at the end."""
    source = images(tmp_path / "in", "0.png", "1.png")
    (at / "slow").touch()
    result = shardctl.convert(source, out, recipe=STALLING, workers=1, input_timeout=1.0)
    assert (result.samples, result.rejected) == (2, 0)


def large_and_small(folder: Path) -> Path:
    """Write a.png and c.png, and between them b.png, which alone is larger than a block."""
    images(folder, "a.png", "c.png")
    pixels = np.random.default_rng(0).integers(0, 256, (1300, 1300, 3), np.uint8)
    Image.fromarray(pixels).save(folder / "b.png")
    return folder


@pytest.mark.thorough
def test_memory_for_the_block_of_a_large_sample_is_asked_of_that_sample_alone(tmp_path, out, at):
    (at / "memory").touch()
    result = shardctl.convert(large_and_small(tmp_path / "in"), out, recipe=STALLING, workers=1)
    (reject,) = rejects_of(out)
    assert (reject.key, reject.stage, reject.error, result.samples) == (
        "b.png",
        "encode",
        "out-of-memory",
        2,
    )


def test_no_memory_for_a_block_of_many_samples_ends_the_job_and_rejects_none(tmp_path, out, at):
    source = images(tmp_path / "in", "0.png", "1.png")
    (at / "no memory").touch()
    with pytest.raises(
        WorkerError, match=r"4 worker processes in a row ran out of memory .* use fewer workers"
    ):
        shardctl.convert(source, out, recipe=STALLING, workers=1)


def test_workers_that_are_killed_while_they_write_cost_no_input(tmp_path, out, at):
    source = images(tmp_path / "in", "0.png", "1.png")
    shardctl.convert(source, tmp_path / "whole", recipe=STALLING, workers=1)

    def kill(estimate: Any) -> None:
        for turn in "abc":
            (at / "kills" / turn).touch()

    shardctl.convert(source, out, recipe=STALLING, workers=1, listener=Listener(announce=kill))
    assert list((at / "kills").iterdir()) == []
    assert sums(out) == sums(tmp_path / "whole")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["image", "table"])
def test_a_function_that_hangs_is_refused_after_a_few_inputs(tables, tmp_path, out, kind):
    """Not after each of the thousand that are tried beforehand has taken all the time that it may
    take."""
    source = (
        tables if kind == "table" else images(tmp_path / "images", *(f"{n}.png" for n in range(9)))
    )
    steps = {"kind": kind, "transform": [{"name": "custom", "target": "fatal_steps:hang"}]}
    with pytest.raises(
        WorkerError,
        match=r"the first 3 inputs took longer than 0\.2 s in fatal_steps:hang; nothing",
    ):
        shardctl.convert(source, out, recipe=steps, workers=1, input_timeout=0.2)


@pytest.mark.thorough
@pytest.mark.usefixtures("tables")
def test_a_record_that_becomes_too_large_costs_itself_alone(tmp_path, out):
    """Memory runs out where its block is written, among many others; it is not among those that are
    tried beforehand."""
    (tmp_path / "many.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(1500)))
    steps = {"transform": [{"name": "custom", "target": "table_steps:large"}]}
    result = shardctl.convert(
        tmp_path / "many.jsonl", out, recipe=steps, workers=1, worker_memory=448 << 20
    )
    assert (result.samples, result.rejected) == (1499, 1)
    (reject,) = rejects_of(out)
    assert (reject.key, reject.error) == ("many.jsonl#1401", "out-of-memory")


NO_MEMORY_TO_MOVE = """
from shardctl.transforms.pipeline import deferred_objects

move = deferred_objects.moved_together

def fails(given, *rest):
    if len(given) > 1 or given[0][0]["bbox"][0][0] == 6.0:
        raise MemoryError
    return move(given, *rest)

deferred_objects.moved_together = fails
"""


@pytest.mark.usefixtures("importable")
def test_a_record_whose_objects_cannot_be_moved_is_found_among_those_that_wait(
    tmp_path, out, monkeypatch
):
    (tmp_path / "sitecustomize.py").write_text(NO_MEMORY_TO_MOVE)  # for the workers alone
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    names = [f"{n:02d}.png" for n in range(9)]
    source = images(tmp_path / "in", *names)
    with Image.open(source / "00.png") as first:
        width, height = first.size
    marked = [{"id": n, "image_id": n, "category_id": 1, "bbox": [n, 0, 1, 1]} for n in range(9)]
    pictures = [
        {"id": n, "file_name": name, "width": width, "height": height}
        for n, name in enumerate(names)
    ]
    labels = {"images": pictures, "annotations": marked, "categories": [{"id": 1, "name": "thing"}]}
    (tmp_path / "labels.json").write_text(json.dumps(labels))
    given = {
        "labels": f"coco:{tmp_path / 'labels.json'}",
        "recipe": {"transform": [{"name": "hflip", "p": 1}]},
    }
    result = shardctl.convert(source, out, workers=1, **given)
    assert (result.samples, result.reasons) == (8, {"transform: out-of-memory": 1})
    assert [reject.key for reject in rejects_of(out)] == ["06.png"]
    assert [sample["key"] for sample in shardctl.open(out)] == [
        name for name in names if name != "06.png"
    ]
