"""Conversions on a real Ray cluster of several nodes on this machine: the same bytes as here,
whatever ends in the middle."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
from conftest import CROP, THOROUGH
from custom_steps import FATAL
from dataset_facts import expect_whole, rejects_of, sums
from dataset_files import tables_in
from followed_sources import write, write_lines
from image_files import images
from in_this_process import command_line
from object_server import ObjectServer
from snapshots import shards_done, wait_until
from store_contents import sums_on

import shardctl
from shardctl.errors import (
    InstallError,
    SourceGoneError,
    TooManyRejectsError,
    UsageError,
    WorkerError,
)
from shardctl.making.convert import Listener
from shardctl.making.shards.engines.ray import Agent, BuildOrder
from shardctl.making.shards.marker import WorkDone
from shardctl.version import __version__

ray = pytest.importorskip("ray")

STEPS = """
import os, signal, time
from pathlib import Path
from shardctl.errors import InputError

NODE = os.environ.get("NODE")
AT = Path(os.environ.get("RAY_STEPS_AT", "/nowhere"))

def wait_for(path):
    while not path.exists():
        time.sleep(0.02)

def same(sample):
    return sample

def refuse(sample):
    if "7" in sample["key"]:
        raise InputError("no sevens")
    return sample

def hold(sample):
    if NODE and sample["key"] > "01.png":
        waiting = AT / f"pid-{os.getpid()}"
        waiting.touch()
        wait_for(AT / "released")
        waiting.unlink()
    return sample

def hold_where_doomed(sample):
    if NODE == "doomed":
        (AT / f"pid-{os.getpid()}").touch()
        signal.pause()
    elif NODE:
        wait_for(AT / "removed")
    return sample

def parent_of(process):
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])

def end_agent(sample):
    if NODE:
        os.kill(parent_of(os.getppid()), signal.SIGKILL)
        signal.pause()
    return sample

def end_agent_once(sample):
    if "7" in sample["key"] and not (AT / "ended").exists():
        (AT / "ended").touch()
        end_agent(sample)
    return sample

def speak(sample):
    print("working on", sample["key"])
    return sample
"""

LIMIT_SECONDS = 60.0
"""A test that waits longer for something fails."""


def until(condition: Callable[[], object]) -> None:
    wait_until(condition, LIMIT_SECONDS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the users' functions are, and the files by which they and the tests tell each other how
    far they are."""
    folder = tmp_path_factory.mktemp("ray_steps")
    (folder / "ray_steps.py").write_text(STEPS)
    (folder / "fatal_steps.py").write_text(FATAL)
    return folder


@pytest.fixture(scope="module")
def cluster(folder: Path, started_server: ObjectServer) -> Iterator[Any]:
    """A head without CPUs, and two nodes (one where tests are to be quick) that build one shard at a
    time, and know the way to the object store."""
    from ray.cluster_utils import Cluster

    quick = {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 500,
        "health_check_failure_threshold": 3,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_STEPS_AT", str(folder))
        made = Cluster(True, head_node_args={"num_cpus": 0, "_system_config": quick, **SMALL})
        try:
            for _ in range(1 + THOROUGH):
                made.add_node(
                    num_cpus=1, env_vars={"NODE": "usual", **started_server.environment}, **SMALL
                )
            yield made
        finally:
            made.shutdown()


SMALL: dict[str, Any] = {"object_store_memory": 80 << 20, "include_dashboard": False}


@pytest.fixture(scope="module")
def connected(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Connect this process once: the processes of the nodes are used again by the next
    conversion."""
    with pytest.MonkeyPatch.context() as patch:
        # nodes look for modules in the current folder first
        patch.chdir(tmp_path_factory.mktemp("elsewhere"))
        ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture(autouse=True)
def steps(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    for name in ("ray_steps", "fatal_steps"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setenv("RAY_STEPS_AT", str(folder))
    for left in folder.glob("*"):
        if left.suffix != ".py" and left.is_file():
            left.unlink()


@contextmanager
def another_node(cluster: Any, **variables: str) -> Iterator[Any]:
    """Add a node with some more variables than the others."""
    node = cluster.add_node(num_cpus=1, env_vars={"NODE": "other", **variables}, **SMALL)
    try:
        yield node
    finally:
        if node in cluster.worker_nodes:
            cluster.remove_node(node, allow_graceful=False)


def recipe(function: str, **more: Any) -> dict[str, Any]:
    module = "fatal_steps" if f"def {function}(" in FATAL else "ray_steps"
    return {
        "store": "png",
        "transform": [{"name": "custom", "target": f"{module}:{function}"}],
        **more,
    }


def is_gone(process: str) -> bool:
    return not Path(f"/proc/{process}").exists()


def held(folder: Path) -> list[str]:
    """Return the numbers of the processes that wait in a function."""
    return [path.name.partition("-")[2] for path in folder.glob("pid-*")]


def photos_split_and_shuffled(photos: Path, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    more = {"split": "train=0.7,val=0.3", "shuffle": 1, "samples_per_shard": 9}
    return photos, {"recipe": CROP, **more}


def texts_cleaned(photos: Path, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    lines = ({"text": f"line {n % 50} " * 30, "n": n} for n in range(200))
    source = write_lines(tmp_path / "lines.jsonl", lines)
    return source, {"recipe": {"transform": [{"name": "deduplicate"}]}, "samples_per_shard": 20}


def records_of_which_a_late_one_has_another_type(
    photos: Path, tmp_path: Path
) -> tuple[Path, dict[str, Any]]:
    """So that the types are found once more, and the job is begun anew in the same folder."""
    lines = ({"n": n if n != 29_990 else "many"} for n in range(30_000))
    return write_lines(tmp_path / "lines.jsonl", lines), {"samples_per_shard": 4000}


def photos_some_of_which_a_function_refuses(
    photos: Path, tmp_path: Path
) -> tuple[Path, dict[str, Any]]:
    return numbered(tmp_path, 30), {"recipe": recipe("refuse"), "samples_per_shard": 7}


def numbered(tmp_path: Path, count: int) -> Path:
    """Make so many images."""
    return images(tmp_path / "in", *(f"{n:02d}.png" for n in range(count)))


def on_ray(source: Path, out: Any, listener: Listener | None = None, **options: Any) -> Any:
    return shardctl.convert(source, out, engine="ray", listener=listener, **options)


def as_here(source: Path, there: Path, **options: Any) -> Any:
    """Expect the same bytes of a local run, and return its result."""
    result = shardctl.convert(source, there.with_name("here"), workers=1, **options)
    assert sums(there) == sums(there.with_name("here"))
    return result


@pytest.mark.thorough(after=1)
@pytest.mark.usefixtures("connected")
@pytest.mark.parametrize(
    "case",
    [
        photos_split_and_shuffled,
        texts_cleaned,
        records_of_which_a_late_one_has_another_type,
        photos_some_of_which_a_function_refuses,
    ],
)
def test_the_dataset_is_that_of_a_local_run(case, photos, tmp_path, out):
    source, options = case(photos, tmp_path)
    told: list[WorkDone] = []
    there = on_ray(source, out, Listener(progress=told.append), **options)
    here = as_here(source, out, **options)
    for name in ("samples", "rejected", "reasons"):
        assert getattr(there, name) == getattr(here, name)
    assert sum(progress.samples for progress in told) == there.samples
    expect_whole(out)


@pytest.mark.thorough
@pytest.mark.usefixtures("connected")
def test_nodes_write_to_an_object_store_which_alone_they_share(photos, bucket, out, tmp_path):
    source, options = photos_split_and_shuffled(photos, tmp_path)
    shardctl.convert(source, out, workers=1, **options)
    assert on_ray(source, f"{bucket}/out", **options).samples == 60
    assert sums_on(f"{bucket}/out") == (tables_in(out) / "SHA256SUMS").read_bytes()
    expect_whole(f"{bucket}/out")


@pytest.mark.thorough
@pytest.mark.usefixtures("connected")
@pytest.mark.parametrize(
    ("function", "error", "options"),
    [
        ("segfault", "crashed", {}),
        ("loop", "timed-out", {"input_timeout": 1.0}),
        ("exhaust", "out-of-memory", {"worker_memory": 512 << 20}),
    ],
)
def test_a_fatal_input_costs_one_input(tmp_path, out, function, error, options):
    source = numbered(tmp_path, 12)
    given = {"recipe": recipe(function), "samples_per_shard": 4, **options}
    result = on_ray(source, out, **given)
    (reject,) = rejects_of(out)
    assert (reject.key, reject.error, result.samples) == ("07.png", error, 11)
    as_here(source, out, **given)


@pytest.mark.thorough
@pytest.mark.usefixtures("connected")
def test_a_node_that_is_removed_costs_the_shards_that_it_was_building(
    tmp_path, out, cluster, folder
):
    source = numbered(tmp_path, 20)
    given = {"recipe": recipe("hold_where_doomed"), "samples_per_shard": 2}
    lines: list[str] = []
    with another_node(cluster, NODE="doomed") as node, ThreadPoolExecutor(1) as thread:

        def remove() -> None:
            until(lambda: held(folder))
            cluster.remove_node(node, allow_graceful=False)
            (folder / "removed").touch()

        removed = thread.submit(remove)
        result = on_ray(source, out, Listener(on_line=lines.append), **given)
        removed.result()
    assert (result.samples, result.rejected) == (20, 0)
    assert any("is lost and built again (NodeDiedError" in line for line in lines)
    until(lambda: all(map(is_gone, held(folder))))
    as_here(source, out, **given)


@pytest.mark.thorough
@pytest.mark.usefixtures("connected")
def test_a_process_of_a_node_that_ends_costs_its_shard(tmp_path, out, folder):
    source = numbered(tmp_path, 9)
    given = {"recipe": recipe("end_agent_once"), "samples_per_shard": 3}
    told: list[WorkDone] = []
    on_ray(source, out, Listener(progress=told.append), **given)
    assert (folder / "ended").exists()
    as_here(source, out, **given)
    # what was lost is taken back
    found = [sum(column) for column in zip(*map(astuple, told), strict=True)]
    assert found[:3] == [9, 9, 0]


@pytest.mark.thorough
@pytest.mark.usefixtures("connected")
def test_a_shard_that_is_lost_every_time_ends_the_conversion(tmp_path, out):
    said = r"shard 0 was lost 4 times .* on node .* \(WorkerCrashedError: .*nothing was comm"
    with pytest.raises(WorkerError, match=said):
        on_ray(numbered(tmp_path, 1), out, recipe=recipe("end_agent"))
    assert not (out / "manifest.json").exists()


@pytest.mark.thorough
@pytest.mark.usefixtures("connected")
def test_errors_are_those_of_a_local_run_and_name_the_node(tmp_path, out):
    source = numbered(tmp_path, 9)
    with pytest.raises(TooManyRejectsError):
        on_ray(source, out, recipe=recipe("refuse"), max_rejects=0, samples_per_shard=3)
    listener = Listener(announce=lambda _: source.rename(tmp_path / "away") and None)
    said = r"^node .* \(\w{8}\): .*in: the source has gone away.* 0 of 3 shards are done"
    with pytest.raises(SourceGoneError, match=said):
        on_ray(source, tmp_path / "gone", listener, samples_per_shard=3)


@pytest.mark.thorough
@pytest.mark.usefixtures("connected")
def test_lines_of_functions_and_what_each_node_has_done_are_told(tmp_path, out):
    lines: list[str] = []
    listener = Listener(on_line=lines.append)
    on_ray(numbered(tmp_path, 4), out, listener, recipe=recipe("speak"), samples_per_shard=1)
    said = [line.partition("): ")[2] for line in lines if line.startswith("node ")]
    working = sorted(text for text in said if text.startswith("working"))
    assert working == [f"working on {n:02}.png" for n in range(4)]
    done = [text for text in said if "inputs/s" in text]
    assert sum(int(text.split()[0]) for text in done) == 4, "shards of all nodes"


NOT_THE_SAME = {
    "shardctl": rf"it has shardctl 0\.0\.7, and this machine {__version__}; install the same",
    "ray_steps": r"it has other versions \(ray_steps:hold \w{12} → \w{12}\); install the same",
}


@pytest.mark.thorough
@pytest.mark.parametrize("what", NOT_THE_SAME)
@pytest.mark.usefixtures("connected")
def test_a_node_that_would_make_other_bytes_is_refused(tmp_path, out, cluster, folder, what):
    """The other nodes wait until the conversion has ended."""
    other = tmp_path / "other"
    if what == "shardctl":
        without = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(shardctl.__file__).parent, other / what, ignore=without)
        write(other / what / "version.py", '__version__ = "0.0.7"\n')
    else:
        write(other / "ray_steps.py", f"{STEPS}\nanother = True\n")
    given = {"recipe": recipe("hold"), "samples_per_shard": 1, "input_timeout": 20.0}
    with (
        another_node(cluster, PYTHONPATH=str(other)),
        pytest.raises(InstallError, match=rf"^node .*: {NOT_THE_SAME[what]}"),
    ):
        on_ray(numbered(tmp_path, 9), out, **given)
    until(lambda: all(map(is_gone, held(folder))))


@pytest.mark.thorough
@pytest.mark.usefixtures("connected")
def test_a_connection_that_is_there_is_used_and_stays(tmp_path, out, cluster):
    source = numbered(tmp_path, 1)
    shardctl.convert(source, out, engine=f"ray:{cluster.address}")
    assert ray.is_initialized()
    with pytest.raises(UsageError, match=r"already uses the Ray cluster at .*, not 127"):
        shardctl.convert(source, tmp_path / "other", engine="ray:127.0.0.9:1")


@contextmanager
def command(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run shardctl in a process of its own."""
    piped: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command_line(*arguments), text=True, **piped) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.thorough
def test_an_interrupt_stops_the_nodes_and_the_same_command_resumes(
    tmp_path, out, cluster, folder, monkeypatch
):
    """Some shards are done, and others wait in a function when it comes."""
    monkeypatch.setenv("PYTHONPATH", str(folder))
    source = numbered(tmp_path, 8)
    given = ("convert", source, out, "--transform", "ray_steps:hold", "--store", "png", "--json")
    given = (*given, "--samples-per-shard", 2, "--engine", f"ray:{cluster.address}")
    with command(*given) as running:
        until(lambda: shards_done(out) or running.poll() is not None)
        until(lambda: held(folder) or running.poll() is not None)
        running.send_signal(signal.SIGINT)
        printed, err = running.communicate(timeout=LIMIT_SECONDS)
    assert (running.returncode, err.strip()) == (130, "")
    assert "1 of 4 shards are done; run the same command again" in json.loads(printed)["error"]
    until(lambda: all(map(is_gone, held(folder))))
    (folder / "released").touch()
    with command(*given) as resumed:
        printed, err = resumed.communicate(timeout=LIMIT_SECONDS)
    assert (resumed.returncode, err, json.loads(printed)["status"]) == (0, "", "resumed")
    as_here(source, out, recipe=recipe("hold"), samples_per_shard=2)


@pytest.mark.thorough
def test_a_file_in_the_current_folder_takes_the_place_of_no_module_on_a_node(
    tmp_path, cluster, monkeypatch
):
    """The current folder may be a dataset of somebody else; people's functions are found in it all
    the same."""
    numbered(tmp_path, 1)
    ran = tmp_path / "ran"
    write(tmp_path / "xxhash.py", f'open({str(ran)!r}, "w")\nraise SystemExit(9)\n')
    write(tmp_path / "found_here.py", "def same(sample):\n    return sample\n")
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    installed = str(Path(sys.executable).with_name("shardctl"))
    words = "convert in out --transform found_here:same --store png --engine ray".split()
    done = subprocess.run([installed, *words], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, "rejected" in done.stdout) == (0, False), done.stderr
    assert not ran.exists()


@pytest.mark.thorough
def test_a_cluster_that_is_not_there_is_told_before_the_work(tmp_path, out):
    words = ("convert", numbered(tmp_path, 1), out, "--engine", "ray:127.0.0.1:1")
    with command(*words) as running:
        _, err = running.communicate(timeout=LIMIT_SECONDS)
    assert running.returncode == 3
    assert "shardctl: the Ray cluster at 127.0.0.1:1 cannot be used (" in err


@pytest.mark.thorough
def test_an_agent_that_does_not_see_the_dataset_says_so(out):
    order = BuildOrder("run", str(out / ".shardctl" / "job"), "", "", 0, "", None, None, 0.0)
    ((message,),) = Agent().build(order)
    name, text = message["failed"]
    assert (name, text.split(": ")[0]) == ("StorageError", str(out))
    assert "this machine does not see it" in text
