"""Conversions that are killed, for real: the same command goes on, and ends with the same bytes."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import CROP
from custom_steps import HELD
from dataset_facts import sums
from image_files import images
from in_this_process import convert, repair
from stopping import stopped_at

import shardctl
from shardctl.errors import DatasetError
from shardctl.making.commit import publish
from shardctl.making.convert import Listener
from shardctl.system.files import sha256_of
from shardctl.system.scratch import scratch_folder

COMMAND = [
    *(
        sys.executable,
        "-m",
        "shardctl",
        "convert",
        "in",
        "out",
        "--transform",
        "steps:held",
        "--store",
        "png",
    ),
    *("--workers", "2", "--samples-per-shard", "4"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """in/ with 40 images, the function steps:held, and whole/, the dataset of a conversion without
    interruption."""
    root = tmp_path_factory.mktemp("resume")
    images(root / "in", *(f"{n:02d}.png" for n in range(40)))
    (root / "steps.py").write_text(HELD)
    command = ["whole" if word == "out" else word for word in COMMAND]
    subprocess.run(command, cwd=root, check=True, capture_output=True)
    return root


@pytest.fixture
def here(made: Path) -> Iterator[Path]:
    """All that, in which a test makes out/, and stops it with the file `hold`."""
    before = sorted(made.iterdir())
    yield made
    for left in set(made.iterdir()) - set(before):
        shutil.rmtree(left) if left.is_dir() else left.unlink()


@contextmanager
def running(here: Path, shards: int) -> Iterator[subprocess.Popen[str]]:
    """Start the command, and give it when so many shards are done; the others are held."""
    (here / "hold").write_text(str(4 * shards))
    with subprocess.Popen(
        COMMAND,
        cwd=here,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as parent:
        while len(list(here.glob("out/.shardctl/*/done/*.arrow"))) < shards:
            assert parent.poll() is None, "it ended before it could be disturbed"
            select.select([], [], [], 0.005)
        yield parent


def children_of(parent: int) -> list[int]:
    return [
        int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    ]


def workers_of(parent: int) -> list[int]:
    """Return the workers, which are children of the process that they are forked from."""
    return [worker for server in children_of(parent) for worker in children_of(server)]


def resume(here: Path) -> str:
    (here / "hold").unlink()
    done = subprocess.run(COMMAND, cwd=here, text=True, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert sums(here / "out") == sums(here / "whole")
    assert sorted(os.listdir(here / "out")) == sorted(os.listdir(here / "whole"))
    return done.stdout


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("shards", [0, 3, 8])
def test_a_killed_conversion_goes_on_and_ends_with_the_same_bytes(here, shards):
    with running(here, shards) as parent:
        parent.kill()
    done = {path: path.stat().st_mtime_ns for path in here.glob("out/.shardctl/*/new/*.arrow")}
    assert not (here / "out" / "manifest.json").exists()
    assert resume(here).startswith("resumed" if shards else ("resumed", "created"))
    kept = {path.name: path.stat().st_mtime_ns for path in (here / "out").glob("train-*")}
    markers = shards  # at least these were finished, and are not built again
    assert sum(kept[path.name] == time for path, time in done.items()) >= markers


@pytest.mark.thorough
def test_a_killed_process_group_goes_on(here):
    with running(here, 4) as parent:
        for process in [*workers_of(parent.pid), *children_of(parent.pid), parent.pid]:
            os.kill(process, signal.SIGKILL)
    resume(here)


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(
    "victims", [workers_of, children_of], ids=["workers", "the process that they are forked from"]
)
def test_a_killed_worker_costs_nothing(here, victims):
    with running(here, 2) as parent:
        killed = victims(parent.pid)
        for process in killed:
            os.kill(process, signal.SIGKILL)
        (here / "hold").unlink()
        out, err = parent.communicate(timeout=60)
    assert parent.returncode == 0, err
    assert killed
    assert "40 samples" in out
    assert sums(here / "out") == sums(here / "whole")


@pytest.mark.thorough
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_says_what_is_done_and_how_to_go_on(here, sent):
    with running(here, 2) as parent:
        parent.send_signal(sent)
        _, err = parent.communicate(timeout=60)
    assert parent.returncode == 130
    assert "of 10 shards are done; run the same command again to continue" in err
    assert "Traceback" not in err
    assert resume(here).startswith("resumed")


IMPORTING = """
import signal, sys
from shardctl import cli

def importing(arguments):
    try:
        signal.raise_signal(int(sys.argv[1]))
    except KeyboardInterrupt as error:
        raise AttributeError("partially initialized module") from error

cli.run = importing
cli.main()
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_an_import_turns_into_an_error_is_one_all_the_same(
    sent,
):
    """Compiled modules do so: `partially initialized module has no attribute`."""
    ran = subprocess.run(
        [sys.executable, "-c", IMPORTING, str(int(sent))], capture_output=True, text=True
    )
    assert (ran.returncode, ran.stderr) == (130, "shardctl: interrupted\n")


IMPORTING_CLICK = """
import importlib.abc, runpy, signal, sys

class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "click":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
runpy.run_module("shardctl", run_name="__main__", alter_sys=True)
"""


def test_an_interrupt_while_the_command_line_is_imported_is_no_traceback():
    ran = subprocess.run(
        [sys.executable, "-c", IMPORTING_CLICK, "--version"], capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "shardctl: interrupted\n")
    ran = subprocess.run(
        [sys.executable, "-c", IMPORTING_CLICK, "verify", "out", "--json"],
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, json.loads(ran.stdout), ran.stderr) == (
        130,
        {"error": "interrupted", "exit_code": 130},
        "",
    )


@pytest.mark.thorough
def test_an_interrupted_demo_is_removed_and_can_be_made_again(cli, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "new", tmp_path / "empty"):
        before = sorted(tmp_path.rglob("*"))
        with monkeypatch.context() as patch:
            patch.setattr("json.dumps", interrupt)  # of the first line of lines.jsonl
            ran = cli("demo", folder, "--images", 3, "--texts", 2)
        assert (ran.code, ran.err.strip()) == (130, "shardctl: interrupted")
        assert sorted(tmp_path.rglob("*")) == before
        assert cli("demo", folder, "--images", 3, "--texts", 2).code == 0


def interrupt(*_arguments: Any, **_options: Any) -> Any:
    raise KeyboardInterrupt


def broken_off(source: Path, out: Path, **options: Any) -> None:
    """Convert with a listener that gives up when half of the inputs are done."""
    done = 0

    def stop(progress: Any) -> None:
        nonlocal done
        done += progress.records
        if done >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="of 8 shards are done"):
        convert(source, out, samples_per_shard=2, listener=Listener(progress=stop), **options)


@pytest.mark.parametrize("tear", ["marker", "shard", "no shard"])
def test_what_a_power_failure_tore_is_built_again(tmp_path, out, tear):
    source = images(tmp_path / "in", *(f"{n:02d}.png" for n in range(16)))
    convert(source, tmp_path / "whole", samples_per_shard=2)
    broken_off(source, out)
    (job,) = (path for path in (out / ".shardctl").iterdir() if path.is_dir())
    victim = next((job / "done").iterdir()) if tear == "marker" else next((job / "new").iterdir())
    if tear == "no shard":
        victim.unlink()
    else:
        victim.write_bytes(victim.read_bytes()[:100])
    (job / "new" / "train-00007.arrow.12345678.partial").write_bytes(b"left by a killed worker")
    assert convert(source, out, samples_per_shard=2).status == "resumed"
    assert sums(out) == sums(tmp_path / "whole")


JOB_KEYS = {
    *(
        "roots",
        "recipe",
        "layout",
        "splits",
        "fields",
        "by_field",
        "draw",
        "shuffle",
        "recorded",
        "url",
        "base",
    ),
    *("parts", "beside", "updates", "kept_records", "changes", "warnings"),
    *(
        "sample_bytes",
        "samples_per_record",
        "record_seconds",
        "shard_bytes",
        "probed",
        "probe_rejects",
    ),
}


def test_other_versions_go_on_with_a_job_that_has_the_same_keys_and_no_others(
    tmp_path,
    out,
):
    """An older version finds all of its keys in job.json; what a newer one says there is not
    overlooked."""
    source = images(tmp_path / "in", *(f"{n:02d}.png" for n in range(16)))
    broken_off(source, out)
    (path,) = (out / ".shardctl").glob("*/job.json")
    job = json.loads(path.read_bytes())
    assert job.keys() == JOB_KEYS
    path.write_text(json.dumps({**job, "newer": 1}))
    with pytest.raises(
        DatasetError, match=r"an unfinished conversion of another version of shardctl: \d shards? "
    ):
        convert(source, out, samples_per_shard=2)
    needless = {
        "kept_records",
        "changes",
        "warnings",
        "probed",
        "probe_rejects",
        "shard_bytes",
        "url",
        "base",
    }
    path.write_text(json.dumps({key: value for key, value in job.items() if key not in needless}))
    assert convert(source, out, samples_per_shard=2).status == "resumed"


def test_finished_work_of_another_conversion_is_not_thrown_away(tmp_path, out):
    source = images(tmp_path / "in", *(f"{n:02d}.png" for n in range(16)))
    broken_off(source, out)
    with pytest.raises(
        DatasetError, match=r"that differs in its recipe and settings: \d of 8 shards are done"
    ):
        convert(source, out, recipe=CROP)
    assert convert(source, out, samples_per_shard=2).status == "resumed"
    broken_off(source, tmp_path / "other")
    assert convert(source, tmp_path / "other", recipe=CROP, overwrite=True).status == "created"
    assert sorted(os.listdir(tmp_path / "other"))[0] == "SHA256SUMS", (
        "nothing is left of the other one"
    )


def test_a_higher_limit_of_rejects_goes_on(tmp_path, out):
    source = images(tmp_path / "in", *(f"{n:02d}.png" for n in range(12)))
    for number in range(0, 12, 3):
        (source / f"{number:02d}.png").write_bytes(b"bad")
    with pytest.raises(
        shardctl.errors.TooManyRejectsError, match="run this again with a higher limit"
    ):
        convert(source, out, samples_per_shard=3, max_rejects="1")
    result = convert(source, out, samples_per_shard=3, max_rejects="4")
    assert (result.status, result.samples, result.rejected) == ("resumed", 8, 4)


NOT_HERE = OSError(22, "not here")


@pytest.fixture
def not_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a system that cannot exchange two folders."""
    monkeypatch.setattr(publish, "_exchange", lambda one, other: (_ for _ in ()).throw(NOT_HERE))


@pytest.fixture
def replacing(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """in/, the datasets old/ and new/ of it, and the options that make new/."""
    source = images(tmp_path / "in", *(f"{n}.png" for n in range(4)))
    convert(source, tmp_path / "old", samples_per_shard=2)
    (tmp_path / "old" / "mine.txt").write_text("not part of it")
    options: dict[str, Any] = {"workers": 0, "samples_per_shard": 4, "recipe": {"store": "png"}}
    shardctl.convert(source, tmp_path / "new", **options)
    return source, options


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["kill", "interrupt"])
@pytest.mark.parametrize("old", [True, False], ids=["overwrite", "create"])
def test_a_dataset_takes_its_place_file_by_file_wherever_that_is_stopped(
    replacing,
    not_exchanged,
    tmp_path,
    monkeypatch,
    old,
    how,
):
    seen = states_when_stopped(replacing, tmp_path, monkeypatch, old, how)
    assert seen == ({"old", "none", "new"} if old else {"none", "new"})


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["kill", "interrupt"])
def test_folders_are_exchanged_wherever_that_is_stopped(
    replacing,
    tmp_path,
    monkeypatch,
    how,
):
    assert states_when_stopped(replacing, tmp_path, monkeypatch, True, how) == {"old", "new"}


def states_when_stopped(
    replacing: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    old: bool,
    how: str,
) -> set[str]:
    """Stop a conversion that is ready to take its place at every change. Return what was found;
    each time it is completed."""
    source, options = replacing

    def convert(out: Path, overwrite: bool) -> None:
        shardctl.convert(source, out, overwrite=overwrite, **options)

    def stopped(out: Path, change: int) -> bool:
        return stopped_at(change, how, publish, "publish", lambda: convert(out, old), monkeypatch)

    if old:
        shutil.copytree(tmp_path / "old", tmp_path / "ready")
    assert stopped(tmp_path / "ready", 0)
    seen = set()
    for change in range(1000):
        out = tmp_path / f"out{change}"
        shutil.copytree(tmp_path / "ready", out)
        if not stopped(out, change):
            assert change > 15
            return seen
        found = state_of(out, tmp_path)
        seen.add(found)
        convert(out, old and found != "new")
        assert sums(out) == sums(tmp_path / "new")
        left = set(os.listdir(out)) - set(os.listdir(tmp_path / "new"))
        assert left == ({"mine.txt"} if old else set()), f"stopped at change {change}"
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
        shutil.rmtree(out)
    raise AssertionError("it never ended")


@pytest.mark.thorough
def test_a_replacement_that_was_stopped_is_completed_or_undone_whatever_comes_next(
    replacing,
    not_exchanged,
    tmp_path,
    monkeypatch,
):
    """By repair, by the command that made the old dataset, and by one that makes yet another
    one."""
    source, options = replacing

    def stop_and(what: str, change: int) -> tuple[str, Path]:
        out = tmp_path / f"{what}{change}"
        shutil.copytree(tmp_path / "old", out)
        convert = partial(shardctl.convert, source, out, overwrite=True, **options)
        assert stopped_at(change, "kill", publish, "publish", convert, monkeypatch)
        return state_of(out, tmp_path), out

    for change in range(0, 16, 3):
        found, out = stop_and("repaired", change)
        repair(out)
        assert state_of(out, tmp_path) == {"old": "old", "none": "new", "new": "new"}[found]
        found, out = stop_and("old", change)
        if found == "old":
            assert (
                shardctl.convert(source, out, workers=0, samples_per_shard=2).status == "up-to-date"
            )
            assert state_of(out, tmp_path) == "old"
        else:
            with pytest.raises(DatasetError, match="that differs in its recipe and settings"):
                shardctl.convert(source, out, workers=0, samples_per_shard=2)
            assert state_of(out, tmp_path) == "new"
        found, out = stop_and("other", change)
        shardctl.convert(source, out, workers=0, samples_per_shard=1, overwrite=True)
        assert shardctl.verify(out).ok
        assert (len(list(out.glob("train-*"))), (out / "mine.txt").exists()) == (4, True)


def state_of(out: Path, where: Path) -> str:
    """Return which dataset is at `out`: the old one or the new one, whole, or none."""
    if not (out / "manifest.json").exists():
        with pytest.raises(
            DatasetError, match=r"unfinished conversion|its files are being replaced"
        ):
            shardctl.open(out)
        return "none"
    found = sums(out)
    return {sums(where / name): name for name in ("old", "new")}[found]


def test_whoever_overwrites_the_folder_that_he_stands_in_stands_in_the_new_dataset(
    tmp_path, out, monkeypatch
):
    source = images(tmp_path / "in", "1.png", "2.png")
    convert(source, out)
    monkeypatch.chdir(out)
    convert(source, ".", recipe={"store": "png"}, overwrite=True)
    assert shardctl.verify(".").findings == ()
    assert shardctl.open(".").manifest.recipe["store"] == "png"


def test_a_reader_finds_the_old_or_the_new_dataset_while_it_is_overwritten(here):
    """A reader that opens and verifies all the time, while a real process overwrites the dataset
    again and again."""
    shutil.copytree(here / "whole", here / "out")
    wholes = {sums(here / "whole")}
    command = [*COMMAND, "--overwrite", "--workers", "0"]
    kept = sha256_of(here / "out" / "train-00000.arrow")
    with subprocess.Popen(
        command, cwd=here, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as writer:
        while writer.poll() is None:
            assert len(shardctl.open(here / "out")) == 40
            assert (here / "out" / "SHA256SUMS").read_bytes() in wholes
            assert sha256_of(here / "out" / "train-00000.arrow") == kept
    assert writer.returncode == 0
    assert sums(here / "out") in wholes


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for temporary files, of this process and of those that it starts."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def killed_in(code: str, *arguments: Path) -> None:
    """Run Python code that kills its own process with SIGKILL."""
    code = f"import os, signal, sys\ndie = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n{code}"
    ran = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr


@pytest.mark.thorough
def test_the_scratch_folder_of_a_killed_conversion_is_removed_by_the_next_one(
    photos, tmp_path, out, temporary
):
    killed_in(
        "import shardctl\nfrom shardctl.making.convert import Listener\n"
        "shardctl.convert(sys.argv[1], sys.argv[2], workers=0, listener=Listener(announce=die))",
        photos,
        out,
    )
    assert list(temporary.iterdir())
    convert(photos, tmp_path / "other")
    assert list(temporary.iterdir()) == []


def test_a_pipe_in_a_scratch_folder_holds_nothing_up(photos, out, temporary):
    (temporary / "shardctl-scratch-abc").mkdir()
    os.mkfifo(temporary / "shardctl-scratch-abc" / ".owner")
    command = [
        sys.executable,
        "-m",
        "shardctl",
        "convert",
        photos,
        out,
        "--workers",
        "0",
    ]
    ran = subprocess.run(
        command, env={**os.environ, "TMPDIR": str(temporary)}, timeout=120, capture_output=True
    )
    assert ran.returncode == 0, ran.stderr
    assert [path.name for path in temporary.iterdir()] == ["shardctl-scratch-abc"]


def test_scratch_folders_that_may_be_in_use_stay(tmp_path, temporary):
    """Of a process that lives, of another machine, and folders of the same name that shardctl has
    not made."""
    killed_in(
        "from shardctl.system.scratch import scratch_folder\nheld = "
        "scratch_folder()\nheld.__enter__()\ndie()"
    )
    (elsewhere,) = temporary.iterdir()
    (elsewhere / ".owner").write_text("another boot")
    (temporary / "shardctl-scratch-data").mkdir()
    (temporary / "shardctl-scratch-data" / ".owner").touch()
    (temporary / "shardctl-scratch-link").symlink_to(tmp_path)
    others = set(temporary.iterdir())
    with scratch_folder() as first:
        (first / "listing").touch()
        with scratch_folder() as second:
            assert first != second
        assert (first / "listing").exists()
    assert set(temporary.iterdir()) == others
