"""How far long work is: a bar at a terminal and in a notebook, else a line now and then, of
commands and of Python alike."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dataset_files import shard_in
from programs import run_python

import shardctl
from shardctl.errors import UsageError
from shardctl.making.convert import Listener
from shardctl.system import progress
from shardctl.system.progress import Bars, Lines, Phase, counting


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """What is written to a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log gets a line for each report."""
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)


# --- lines ---


def test_a_log_gets_a_line_every_30_seconds_and_none_of_short_work(clock):
    log = io.StringIO()
    shown = Lines(log, clock)
    shown.begin(Phase(unit="inputs", total=10_000))
    for done in range(0, 4000, 400):
        shown.report(done, note="0 rejected")
        clock.now += 3
    assert log.getvalue() == ""
    for seconds, done in ((0, 4000), (0, 4100), (29, 4200), (1, 4201)):
        clock.now += seconds
        shown.report(done, note="2 rejected")
    assert log.getvalue().splitlines() == [
        "40 %, 4,000 of 10,000 inputs, 133/s, about 45 s left, 2 rejected",
        "42 %, 4,201 of 10,000 inputs, 70/s, about 1 min left, 2 rejected",
    ]


@pytest.mark.parametrize(
    ("done", "total", "seconds", "line"),
    [
        (3, 4, 600, "75 %, 3 of 4 shards, 0.005/s, about 3 min left"),
        (9_999, 10_000, 1, "99 %, 9,999 of 10,000 shards, 9,999/s, about 1 s left"),
        (10, 10, 5, "100 %, 10 of 10 shards, 2/s"),
        (12, 10, 6, "100 %, 12 of 10 shards, 2/s"),
        (0, 10, 60, "0 %, 0 of 10 shards"),
        (0, 0, 60, "0 shards"),
    ],
)
def test_figures_of_a_line(clock, done, total, seconds, line):
    log = io.StringIO()
    shown = Lines(log, clock, every=0)
    shown.begin(Phase("checking", "shards"))
    clock.now += seconds
    shown.report(done, total)
    assert log.getvalue() == f"checking: {line}\n"


def test_a_log_that_cannot_be_written_stops_no_work(clock):
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    shown = Lines(Full(), clock, every=0)
    shown.begin(Phase("checking", "files"))
    shown.report(1, 2)


def test_a_program_without_streams_works(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with counting(True, "shards", "verifying") as report:
        report(1, 2)


# --- bars ---


def test_a_terminal_gets_a_bar_that_goes_away_and_leaves_no_thread(monkeypatch):
    terminal, threads = Terminal(), threading.enumerate()
    monkeypatch.setattr(sys, "stderr", terminal)
    with counting(True, "shards", "verifying") as report:
        report(2, 8)
    assert re.search(r"verifying:  25%.* 2/8", terminal.getvalue())
    assert terminal.getvalue().split("\r")[-2].isspace(), "it is wiped out"
    assert threading.enumerate() == threads, "a thread would stay in a process that forks"


def test_a_line_goes_above_the_bar():
    terminal = Terminal()
    with Bars(terminal) as shown:
        shown.begin(Phase(unit="inputs", total=9, stays=True))
        shown.report(3)
        shown.write("a worker says this")
    *_, line, bar = terminal.getvalue().rstrip("\n").split("\n")
    assert line.split("\r")[-1] == "a worker says this"
    assert "3/9" in bar


def test_what_is_mostly_short_gets_no_bar_at_once(clock):
    terminal = Terminal()
    shown = Bars(terminal, clock)
    report = shown.counter(Phase("listing", "inputs", short=True))
    report(300)
    assert terminal.getvalue() == ""
    clock.now += progress.LATE_SECONDS
    report(65_536)
    shown.close()
    assert "listing:" in terminal.getvalue()


def test_a_notebook_without_widgets_gets_the_plain_bar(monkeypatch):
    shell, shown = SimpleNamespace(config={"IPKernelApp": {}}), io.StringIO()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "stderr", shown)
    with counting(True, "shards", "verifying") as report:
        report(1, 4)
    assert "verifying:  25%" in shown.getvalue()


# --- the functions of Python ---


def test_a_function_gets_the_counts_in_place_of_what_is_shown(at_once, capsys):
    heard = []
    with counting(lambda *counts: heard.append(counts), "shards", "verifying") as report:
        report(1, 4)
    assert (heard, capsys.readouterr().err) == ([(1, 4)], "")


def test_progress_is_true_or_false(photos, out):
    for wrong in ("yes", None, 2):
        with pytest.raises(UsageError, match="progress must be True or False"):
            shardctl.convert(photos, out, progress=wrong)


def prepared(demo: Path, folder: Path) -> dict[str, tuple[Callable[..., object], list[str]]]:
    """Return the functions that may run long, each ready to be called with `progress`, in an order
    in which they can be, and the lines of each."""
    photos, out, grown = demo / "photos", folder / "out", folder / "grown"
    few: dict[str, Any] = {"workers": 0, "samples_per_shard": 20, "recipe": {"store": "source"}}
    shardctl.convert(photos, folder / "parts", part="1/1", progress=False, **few)
    shardctl.convert(photos, folder / "old", progress=False, **few)
    for part in sorted(photos.iterdir())[:5]:
        shutil.copytree(part, grown / part.name)
    shardctl.convert(grown, folder / "updated", progress=False, **few)
    for path in sorted(grown.rglob("*.jpg"))[::6]:
        path.unlink()
    shardctl.convert(grown, folder / "updated", progress=False, update=True, **few)
    (shard_in(folder / "old", "train-00001")).unlink()
    brief = {"runs": 1, "epochs": 1, "threads": 1, "decode": False}
    words = {"kind": "words", "vocab_size": 50, "workers": 0}
    return {
        "convert": (
            partial(shardctl.convert, photos, out, **few),
            ["100 %, 60 of 60 inputs, .*, 0 rejected"],
        ),
        "verify": (partial(shardctl.verify, out), ["verifying: 100 %, 3 of 3 shards.*"]),
        "bench": (partial(shardctl.bench, out, **brief), ["reading: 60 samples.*"]),
        "export": (
            partial(shardctl.export, out, folder / "files", "files", workers=0),
            ["exporting: 100 %, 60 of 60 samples.*"],
        ),
        "finish": (
            partial(shardctl.finish, folder / "parts"),
            ["checking: .* of 3 shards.*", "finishing: .* of 3 shards.*"],
        ),
        "repair": (
            partial(shardctl.repair, folder / "old", workers=0),
            ["checking: 100 %, .* files.*", "rebuilding: 100 %, 20 of 20 inputs.*"],
        ),
        "prune": (
            partial(shardctl.prune, out, where="index == 0"),
            ["pruning: 100 %, 1 of 1 shards.*"],
        ),
        "compact": (
            partial(shardctl.compact, folder / "updated"),
            ["compacting: 100 %, .* shards.*"],
        ),
        "train_tokenizer": (
            partial(shardctl.train_tokenizer, demo / "texts", folder / "words.txt", **words),
            ["100 %, 20 of 20 inputs, .*", "reading: 100 %, 20 of 20 texts.*", "training"],
        ),
    }


@pytest.mark.thorough
def test_functions_show_progress_once_and_only_where_it_is_wanted(demo, tmp_path, at_once, capfd):
    for name in ("silent", "loud"):
        (tmp_path / name).mkdir()
    for name, (function, _) in prepared(demo, tmp_path / "silent").items():
        function(progress=False)
        assert capfd.readouterr() == ("", ""), name
    for name, (function, lines) in prepared(demo, tmp_path / "loud").items():
        function()
        said = capfd.readouterr().err.splitlines()
        for line in lines:
            assert any(re.fullmatch(line, each) for each in said), (name, line, said)
        assert len(said) == len(set(said)), (name, "no line is doubled", said)


def test_a_listener_is_told_in_place_of_what_is_shown(photos, tmp_path, at_once, capfd):
    heard: list[Any] = []
    shardctl.convert(photos, tmp_path / "out", workers=0, listener=Listener(progress=heard.append))
    assert heard
    assert capfd.readouterr().err == ""


def test_short_work_prints_nothing(photos, out, capfd):
    shardctl.convert(photos, out, workers=0)
    shardctl.verify(out)
    assert capfd.readouterr() == ("", "")


# --- the commands ---


def test_a_command_with_its_log_in_a_file_writes_lines(photos, out, tmp_path):
    code = """
from shardctl.system import progress
progress.LINE_SECONDS = 0.0
from shardctl.__main__ import main
main()
"""
    with open(tmp_path / "log", "w") as log:
        to_log = {"capture_output": False, "stdout": subprocess.DEVNULL, "stderr": log}
        run_python(code, "convert", photos, out, "--workers", 1, check=True, **to_log)
    said = (tmp_path / "log").read_text()
    assert "\nlisting: 60 inputs\n" in f"\n{said}"
    assert re.search(r"^100 %, 60 of 60 inputs, [\d,.]+/s, 0 rejected$", said, re.MULTILINE)
    assert "\r" not in said
