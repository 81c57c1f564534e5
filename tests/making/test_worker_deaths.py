"""Inputs that workers die of: a real segfault, real exhaustion of memory, a real endless loop."""

from __future__ import annotations

import os
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from custom_steps import FATAL
from dataset_facts import expect_whole, keys, rejects_of, sums
from followed_sources import write, write_lines
from image_files import images, saved
from PIL import Image
from written_samples import pixels

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


def numbered(tmp_path: Path, count: int) -> Path:
    """Make so many images."""
    return images(tmp_path / "in", *(f"{n:02d}.png" for n in range(count)))


def facts(out: Path) -> tuple[str, str, str]:
    """Return the key, stage and error of the only reject."""
    (reject,) = rejects_of(out)
    return reject.key, reject.stage, reject.error


def recipe(function: str) -> dict[str, Any]:
    return {"store": "png", "transform": [{"name": "custom", "target": f"fatal_steps:{function}"}]}


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(
    ("function", "error", "message", "options"),
    [
        ("segfault", "crashed", "was ended by SIGSEGV every time", {}),
        ("exhaust", "out-of-memory", "needs more memory than", {"worker_memory": 512 << 20}),
        ("exhaust_in_c", "crashed", "was ended by SIGABRT every time", {}),
        ("loop", "timed-out", "took longer than 1 s; --input-timeout", {"input_timeout": 1.0}),
        ("leave", "exited", "ended with exit code 3 every time", {}),
        ("killed", "killed", "by SIGKILL every time .* as systems do when memory runs out", {}),
    ],
)
def test_a_fatal_input_is_found_and_rejected_and_the_rest_is_converted(
    tmp_path, out, function, error, message, options
):
    """Among 30 inputs, 3 of them fatal, so that several shards and the inputs that are tried
    beforehand have some."""
    source = numbered(tmp_path, 30)
    limits = {"samples_per_shard": 10, "workers": 2, **options}
    shardctl.convert(source, out, recipe=recipe(function), **limits)
    names = [f"{n:02d}.png" for n in range(30)]
    rejects = rejects_of(out)
    assert [reject.key for reject in rejects] == ["07.png", "17.png", "27.png"]
    assert {(reject.stage, reject.error) for reject in rejects} == {("transform", error)}
    assert all(re.search(message, reject.message) for reject in rejects)
    assert keys(out) == [name for name in names if "7" not in name]
    expect_whole(out)


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


UNPARSED = """
import ctypes
from shardctl.sources.formats.jsonl import JsonLines

parse = JsonLines.parse

def fatal(form, part, reading, schema, choose):
    parsed = parse(form, part, reading, schema, choose)
    if "fatal" in parsed.batch.schema.names and True in parsed.batch["fatal"].to_pylist():
        ctypes.string_at(0)
    return parsed

JsonLines.parse = fatal

def same(sample):
    return sample
"""


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, importable: None) -> Path:
    """Files with ten records each, and steps of which one stands for a fault of a library that
    reads."""
    write(tmp_path / "table_steps.py", UNREADABLE)
    # for the workers alone
    steps = types.ModuleType("table_steps")
    monkeypatch.setitem(sys.modules, "table_steps", steps)
    vars(steps).update(dict.fromkeys(("same", "large"), lambda sample: sample))
    for number in range(4):
        write_lines(tmp_path / "in" / f"{number}.jsonl", ({"n": n} for n in range(10)))
    return tmp_path / "in"


def test_a_unit_that_ends_every_worker_that_reads_it_is_rejected(tables, out):
    steps = {"transform": [{"name": "custom", "target": "table_steps:same"}]}
    result = shardctl.convert(tables, out, recipe=steps, workers=1)
    assert (result.samples, result.rejected) == (30, 10)
    assert {(reject.source, reject.error) for reject in rejects_of(out)} == {("2.jsonl", "crashed")}


def test_a_record_that_is_fatal_to_a_parser_of_several_files_costs_itself_alone(tables, out):
    write_lines(tables / "2.jsonl", ({"n": n, "fatal": n == 7} for n in range(10)))
    steps = {"transform": [{"name": "custom", "target": "table_steps:same"}]}
    write(tables.parent / "table_steps.py", UNPARSED)
    result = shardctl.convert(tables, out, recipe=steps, workers=1, samples_per_shard=100)
    assert (result.samples, result.rejected) == (39, 1)
    assert {(reject.key, reject.error) for reject in rejects_of(out)} == {("2.jsonl#8", "crashed")}


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
    given: dict[str, Any] = {"recipe": recipe("log_and_leave"), "listener": listener}
    shardctl.convert(source, out, workers=1, max_rejects="100%", **given)
    tried = log.read_text().split()
    assert tried.count("00.png") == times
    assert {tried.count(f"{name}.png") for name in names if "7" in name} == {2}


def test_inputs_that_all_kill_their_worker_are_told_with_the_last_death(tmp_path, out):
    source = images(tmp_path / "in", "7.png")
    said = "none of 1 input came through the recipe, the last one because: .* exit code 3 every"
    with pytest.raises(InputError, match=said):
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
    broken = "import os; os.write(2, b'broken installation'); os._exit(1)"
    write(tmp_path / "sitecustomize.py", broken)
    said = r"4 worker processes in a row .* not at one of their inputs: broken installation"
    with pytest.raises(WorkerError, match=said):
        shardctl.convert(images(tmp_path / "in", "1.png"), out, workers=2)
    assert not out.exists()


def test_what_a_function_prints_is_shown_on_stderr_when_more_is_asked_for(tmp_path, out, cli):
    source = images(tmp_path / "in", "a.png", "b.png")
    words = "--transform fatal_steps:talk --workers 2 --overwrite".split()
    quiet = cli("convert", source, out, *words)
    assert "working" not in quiet.out + quiet.err
    loud = cli("convert", source, out, *words, "-v", "--json")
    assert loud.json["samples"] == 2
    assert "worker 1: working on a.png \\x1b[2J\n" in loud.err


def test_a_file_in_the_current_folder_takes_the_place_of_no_module(tmp_path, cli, monkeypatch):
    """The current folder may be a dataset of somebody else; people's functions are found in it all
    the same."""
    here = tmp_path / "here"
    images(here / "in", "a.png")
    write(here / "wave.py", "raise SystemExit(9)")
    write(here / "found_here.py", "from fatal_steps import where_from")
    monkeypatch.chdir(here)
    words = "in out --transform found_here:where_from --workers 1"
    ran = cli("convert", *words.split())
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
    write(tmp_path / "stalls.py", STALLS)
    (tmp_path / "at" / "kills").mkdir(parents=True)
    monkeypatch.setenv("STALL_AT", str(tmp_path / "at"))
    monkeypatch.delitem(sys.modules, "stalls", raising=False)
    for owner, names in (
        (inputs, ("read_file", "_read_range")),
        (ShardWriter, ("_write_block", "add")),
    ):
        for name in names:
            # put back in this process, which imports the functions too
            monkeypatch.setattr(owner, name, getattr(owner, name))
    return tmp_path / "at"


def stalling(source: Path, out: Path, **options: Any) -> Any:
    return shardctl.convert(source, out, recipe=STALLING, workers=1, **options)


@pytest.mark.thorough
def test_a_source_that_does_not_answer_stops_the_job_and_rejects_nothing(tmp_path, out, at):
    source = numbered(tmp_path, 6)
    options: dict[str, Any] = {"samples_per_shard": 3, "input_timeout": 1.0}
    stalling(source, tmp_path / "whole", **options)
    stall = Listener(announce=lambda estimate: (at / "source").touch())
    said = (
        r"in: the source does not respond: 00.png, then 01.png, took longer than 1 "
        r"s; .* input_timeout\. 0 of 2"
    )
    with pytest.raises(SourceGoneError, match=said):
        stalling(source, out, listener=stall, **options)
    (at / "source").unlink()
    assert stalling(source, out, **options).status == "resumed"
    assert sums(out) == sums(tmp_path / "whole")


@pytest.mark.thorough
def test_an_input_that_cannot_be_read_in_time_is_rejected_where_others_of_its_source_can(
    tmp_path, out, at
):
    (at / "7").touch()
    assert stalling(numbered(tmp_path, 9), out, input_timeout=1.0).samples == 8
    assert facts(out) == ("07.png", "read", "timed-out")


@pytest.mark.thorough
def test_a_slow_disk_at_the_destination_is_no_fault_of_an_input(tmp_path, out, at):
    """A block is written when the second one does not fit into it, and another at the end."""
    (at / "slow").touch()
    result = stalling(numbered(tmp_path, 2), out, input_timeout=1.0)
    assert (result.samples, result.rejected) == (2, 0)


@pytest.mark.thorough
def test_memory_for_the_block_of_a_large_sample_is_asked_of_that_sample_alone(tmp_path, out, at):
    """Of b.png, which alone is larger than a block."""
    source = images(tmp_path / "in", "a.png", "c.png")
    saved(Image.fromarray(pixels(0, 1300)), source / "b.png")
    (at / "memory").touch()
    assert stalling(source, out).samples == 2
    assert facts(out) == ("b.png", "encode", "out-of-memory")


def test_no_memory_for_a_block_of_many_samples_ends_the_job_and_rejects_none(tmp_path, out, at):
    (at / "no memory").touch()
    said = r"4 worker processes in a row ran out of memory .* use fewer workers"
    with pytest.raises(WorkerError, match=said):
        stalling(numbered(tmp_path, 2), out)


def test_workers_that_are_killed_while_they_write_cost_no_input(tmp_path, out, at):
    source = numbered(tmp_path, 2)
    stalling(source, tmp_path / "whole")

    def kill(estimate: Any) -> None:
        for turn in "abc":
            (at / "kills" / turn).touch()

    stalling(source, out, listener=Listener(announce=kill))
    assert list((at / "kills").iterdir()) == []
    assert sums(out) == sums(tmp_path / "whole")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["image", "table"])
def test_a_function_that_hangs_is_refused_after_a_few_inputs(tables, tmp_path, out, kind):
    """Not after each of the thousand that are tried beforehand has taken all the time that it may
    take."""
    if kind == "image":
        tables = images(tmp_path / "images", *(f"{n}.png" for n in range(9)))
    steps = {"kind": kind, "transform": [{"name": "custom", "target": "fatal_steps:hang"}]}
    said = r"the first 3 inputs took longer than 0\.2 s in fatal_steps:hang; nothing"
    with pytest.raises(WorkerError, match=said):
        shardctl.convert(tables, out, recipe=steps, workers=1, input_timeout=0.2)


@pytest.mark.thorough
@pytest.mark.usefixtures("tables")
def test_a_record_that_becomes_too_large_costs_itself_alone(tmp_path, out):
    """Memory runs out where its block is written, among many others; it is not among those that are
    tried beforehand."""
    source = write_lines(tmp_path / "many.jsonl", ({"n": n} for n in range(1500)))
    steps = {"transform": [{"name": "custom", "target": "table_steps:large"}]}
    result = shardctl.convert(source, out, recipe=steps, workers=1, worker_memory=448 << 20)
    assert (result.samples, result.rejected) == (1499, 1)
    assert facts(out)[::2] == ("many.jsonl#1401", "out-of-memory")


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
    write(tmp_path / "sitecustomize.py", NO_MEMORY_TO_MOVE)  # for the workers alone
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    source = numbered(tmp_path, 9)
    lines = (
        {"file_name": f"{n:02d}.png", "objects": {"bbox": [[n, 0, 1, 1]], "category": [0]}}
        for n in range(9)
    )
    write_lines(source / "metadata.jsonl", lines)
    flip = {"transform": [{"name": "hflip", "p": 1}]}
    assert shardctl.convert(source, out, recipe=flip, workers=1).samples == 8
    assert facts(out) == ("06.png", "transform", "out-of-memory")
    assert keys(out) == [f"{n:02d}.png" for n in range(9) if n != 6]
