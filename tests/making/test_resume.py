"""Conversions that are killed, for real: the same command goes on, and ends with the same bytes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from conftest import CROP
from dataset_facts import expect_whole, sums
from dataset_files import shard_in, shards_in, tables_in
from held_conversions import go_on, held, started
from held_conversions import here as here
from held_conversions import made as made
from image_files import images
from in_this_process import children_of, convert, repair
from PIL import Image
from programs import run_command, run_python
from snapshots import shards_done
from stopping import stop_after, stopped_at, stops

import shardctl
from shardctl.errors import DatasetError, TooManyRejectsError
from shardctl.making.commit.target import Target
from shardctl.making.convert import Listener
from shardctl.system.files import sha256_of
from shardctl.system.scratch import scratch_folder

WORKERS = ("--workers", "2")


def running(here: Path, shards: int) -> AbstractContextManager[subprocess.Popen[str]]:
    """Start the conversion, and give it when so many shards are done; the others are held."""
    out = here / "out"
    return held(here, 4 * shards, lambda: shards_done(out) >= shards, "out", *WORKERS)


def workers_of(parent: int) -> list[int]:
    """Return the workers, which are children of the process that they are forked from."""
    return [worker for server in children_of(parent) for worker in children_of(server)]


def resume(here: Path) -> str:
    done = go_on(here, "out", *WORKERS)
    assert done.returncode == 0, done.stderr
    assert sums(here / "out") == sums(here / "whole")
    assert sorted(os.listdir(here / "out")) == sorted(os.listdir(here / "whole"))
    return done.stdout


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("shards", [0, 3, 8])
def test_a_killed_conversion_goes_on_and_ends_with_the_same_bytes(here, shards):
    with running(here, shards) as parent:
        parent.kill()
    done = {path: path.stat().st_mtime_ns for path in here.glob("out/data/*.arrow")}
    assert not (here / "out" / "manifest.json").exists()
    assert resume(here).startswith("resumed" if shards else ("resumed", "created"))
    kept = {path.name: path.stat().st_mtime_ns for path in shards_in(here / "out")}
    assert sum(kept[path.name] == time for path, time in done.items()) >= shards


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
def test_an_interrupt_says_what_is_done_and_how_to_go_on(here):
    with running(here, 2) as parent:
        parent.send_signal(signal.SIGINT)
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
def test_an_interrupt_that_an_import_turns_into_an_error_is_one_all_the_same(sent):
    """Compiled modules do so: `partially initialized module has no attribute`."""
    ran = run_python(IMPORTING, int(sent))
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


@pytest.mark.parametrize(
    ("words", "out", "err"),
    [
        (["--version"], "", "shardctl: interrupted\n"),
        (["verify", "out", "--json"], '{"error": "interrupted", "exit_code": 130}\n', ""),
    ],
)
def test_an_interrupt_while_the_command_line_is_imported_is_no_traceback(words, out, err):
    ran = run_python(IMPORTING_CLICK, *words)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, out, err)


@pytest.mark.thorough
def test_an_interrupted_demo_is_removed_and_can_be_made_again(cli, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "new", tmp_path / "empty"):
        before = sorted(tmp_path.rglob("*"))
        demo = ("demo", folder, "--images", 3, "--texts", 2)
        with monkeypatch.context() as patch:
            patch.setattr("json.dumps", Mock(side_effect=KeyboardInterrupt))  # of lines.jsonl
            ran = cli(*demo)
        assert (ran.code, ran.err.strip()) == (130, "shardctl: interrupted")
        assert sorted(tmp_path.rglob("*")) == before
        assert cli(*demo).code == 0


@pytest.fixture
def images_in(tmp_path: Path) -> Path:
    """16 images, of which 8 shards are made."""
    return images(tmp_path / "in", *(f"{n:02d}.png" for n in range(16)))


def small(source: Path, out: Path, **options: Any) -> Any:
    return convert(source, out, samples_per_shard=2, **options)


def broken_off(source: Path, out: Path) -> Path:
    """Interrupt a conversion when half of the inputs are done, and return its job."""
    with pytest.raises(KeyboardInterrupt, match="of 8 shards are done"):
        small(source, out, listener=Listener(progress=stop_after(8)))
    (job,) = (path.parent for path in out.glob(".shardctl/*/job.json"))
    return job


@pytest.mark.parametrize("tear", ["marker", "shard", "no shard"])
def test_what_a_power_failure_tore_is_built_again(images_in, tmp_path, out, tear):
    small(images_in, tmp_path / "whole")
    job = broken_off(images_in, out)
    victim = next((job / "done" if tear == "marker" else out / "data").iterdir())
    if tear == "no shard":
        victim.unlink()
    else:
        victim.write_bytes(victim.read_bytes()[:100])
    job_id = json.loads((job / "job.json").read_bytes())["id"]
    left = out / "data" / f"train-00007.{job_id}.12345678.partial"
    left.write_bytes(b"left by a killed worker")
    assert small(images_in, out).status == "resumed"
    assert sums(out) == sums(tmp_path / "whole")
    assert not left.exists()


def test_a_resumed_conversion_tells_what_its_plan_found(tmp_path, out):
    source = tmp_path / "in.csv"
    source.write_text(",a\n" + "".join(f"{n},x\n" for n in range(16)))
    broken_off(source, out)
    resumed, whole = small(source, out), small(source, tmp_path / "whole")
    assert (resumed.status, whole.status) == ("resumed", "created")
    assert resumed.notices == whole.notices
    assert len(whole.notices) == 1


def test_who_goes_on_from_complete_tables_tells_of_frames_too(tmp_path, out):
    frames = [Image.new("L", (8, 8), grey) for grey in (0, 255)]
    (tmp_path / "in").mkdir()
    frames[0].save(tmp_path / "in" / "a.gif", save_all=True, append_images=frames[1:])
    with pytest.MonkeyPatch.context() as stopped:
        stopped.setattr(Target, "put", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            convert(tmp_path / "in", out)
    assert list(out.glob("generations/*/manifest.json"))
    resumed, whole = convert(tmp_path / "in", out), convert(tmp_path / "in", tmp_path / "whole")
    assert resumed.status == "resumed"
    assert resumed.notices == whole.notices
    assert len(whole.notices) == 1


NEEDLESS = set(
    "kept_records changes notices warnings probed probe_rejects shard_bytes url apart label_states typed".split()
)


JOB_KEYS = NEEDLESS | set(
    "id bases recipe layout splits fields by_field draw shuffle recorded parts beside digest_before "
    "sample_bytes samples_per_record record_seconds".split()
)


def test_other_versions_go_on_with_a_job_that_has_the_same_keys_and_no_others(images_in, out):
    """An older version finds all of its keys in job.json; what a newer one says there is not
    overlooked."""
    path = broken_off(images_in, out) / "job.json"
    job = json.loads(path.read_bytes())
    assert job.keys() == JOB_KEYS
    path.write_text(json.dumps({**job, "newer": 1}))
    with pytest.raises(DatasetError, match="an unfinished conversion of another version of"):
        small(images_in, out)
    path.write_text(json.dumps({key: value for key, value in job.items() if key not in NEEDLESS}))
    assert small(images_in, out).status == "resumed"


def test_a_job_that_updates_another_dataset_is_not_gone_on_with(tmp_path, out):
    source = images(tmp_path / "in", *(f"{n:02d}.png" for n in range(16)))
    broken_off(source, out)
    (path,) = (out / ".shardctl").glob("*/job.json")
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "digest_before": "another"}))
    assert convert(source, out, samples_per_shard=2).status == "created"


def test_finished_work_of_another_conversion_is_not_thrown_away(images_in, out):
    broken_off(images_in, out)
    with pytest.raises(DatasetError, match=r"its recipe and settings: \d of 8 shards are done"):
        convert(images_in, out, recipe=CROP)
    assert small(images_in, out).status == "resumed"


def test_a_higher_limit_of_rejects_goes_on(images_in, out):
    for number in range(0, 16, 4):
        (images_in / f"{number:02d}.png").write_bytes(b"bad")
    with pytest.raises(TooManyRejectsError, match="run this again with a higher limit"):
        small(images_in, out, max_rejects="1")
    result = small(images_in, out, max_rejects="4")
    assert (result.status, result.samples, result.rejected) == ("resumed", 12, 4)


@pytest.fixture
def replacing(tmp_path: Path) -> Callable[..., Any]:
    """in/, the datasets old/ and new/ of it, and what makes new/ at a place."""
    source = images(tmp_path / "in", *(f"{n}.png" for n in range(4)))
    small(source, tmp_path / "old")
    (tmp_path / "old" / "mine.txt").write_text("not part of it")
    make = partial(convert, source, samples_per_shard=4, recipe={"store": "png"})
    make(tmp_path / "new")
    return make


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["kill", "interrupt"])
@pytest.mark.parametrize("old", [True, False], ids=["overwrite", "create"])
def test_a_dataset_takes_its_place_wherever_that_is_stopped(
    replacing, tmp_path, monkeypatch, old, how
):
    """A conversion that is ready to take its place is stopped at every change; each time it is
    completed, and the next command that writes leaves nothing else."""
    ready, seen = tmp_path / "ready", set()
    make = partial(replacing, overwrite=old)
    if old:
        shutil.copytree(tmp_path / "old", ready)
    assert stopped_at(0, how, Target, "put", lambda: make(ready), monkeypatch)
    for out in stops(range(1000), how, Target, "put", ready, make, monkeypatch):
        found = state_of(out)
        seen.add(found)
        if found == "new":
            repair(out)
        else:
            replacing(out, overwrite=old)
        assert sums(out) == sums(tmp_path / "new")
        count = len(list(out.glob("generations/*"))), len(list(out.glob("data/*")))
        assert count == ((2, 3) if old else (1, 1))
        left = set(os.listdir(out)) - set(os.listdir(tmp_path / "new"))
        assert left == ({"mine.txt"} if old else set())
    assert seen == {"old" if old else "none", "new"}


@pytest.mark.thorough
def test_a_replacement_that_was_stopped_is_completed_or_undone_whatever_comes_next(
    replacing, tmp_path, monkeypatch
):
    """By repair, by the command that made the old dataset, and by one that makes yet another
    one."""
    source = tmp_path / "in"

    def stop_and(what: str, change: int) -> tuple[str, Path]:
        out = tmp_path / f"{what}{change}"
        shutil.copytree(tmp_path / "old", out)
        make = partial(replacing, out, overwrite=True)
        assert stopped_at(change, "kill", Target, "put", make, monkeypatch)
        return state_of(out), out

    for change in range(0, 16, 3):
        found, out = stop_and("repaired", change)
        repair(out)
        assert state_of(out) == ("old" if found == "old" else "new")
        found, out = stop_and("old", change)
        if found == "old":
            assert small(source, out).status == "up-to-date"
        else:
            with pytest.raises(DatasetError, match="that differs in its recipe and settings"):
                small(source, out)
        assert state_of(out) == ("old" if found == "old" else "new")
        found, out = stop_and("other", change)
        convert(source, out, samples_per_shard=1, overwrite=True)
        assert shardctl.verify(out).ok
        assert (len(shards_in(out)), (out / "mine.txt").exists()) == (4, True)


def state_of(out: Path) -> str:
    """Return which dataset is at `out`: the old one or the new one, whole, or none."""
    if not (out / "manifest.json").exists():
        with pytest.raises(DatasetError, match="unfinished conversion"):
            shardctl.open(out)
        return "none"
    return {sums(out.with_name(name)): name for name in ("old", "new")}[sums(out)]


def test_whoever_overwrites_the_folder_that_he_stands_in_stands_in_the_new_dataset(
    tmp_path, out, monkeypatch
):
    source = images(tmp_path / "in", "1.png", "2.png")
    convert(source, out)
    monkeypatch.chdir(out)
    convert(source, ".", recipe={"store": "png"}, overwrite=True)
    expect_whole(".")
    assert shardctl.open(".").manifest.recipe["store"] == "png"


def test_a_reader_finds_the_old_or_the_new_dataset_while_it_is_overwritten(here):
    """A reader that opens and verifies all the time, while a real process overwrites the dataset
    again and again."""
    out = Path(shutil.copytree(here / "whole", here / "out"))
    whole, kept = sums(out), sha256_of(shard_in(out, "train-00000"))
    with started(here, "out", "--overwrite", "--workers", "0") as writer:
        while writer.poll() is None:
            assert len(shardctl.open(out)) == 40
            assert (tables_in(out) / "SHA256SUMS").read_bytes() == whole
            assert sha256_of(shard_in(out, "train-00000")) == kept
    assert writer.returncode == 0
    assert sums(out) == whole


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
    begin = "import os, signal, sys\ndie = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
    assert run_python(begin + code, *arguments).returncode == -signal.SIGKILL


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
    pipe = temporary / "shardctl-scratch-abc" / ".owner"
    pipe.parent.mkdir()
    os.mkfifo(pipe)
    ran = run_command("convert", photos, out, "--workers", "0")
    assert ran.returncode == 0, ran.stderr
    assert list(temporary.iterdir()) == [pipe.parent]


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
