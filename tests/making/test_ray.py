"""Conversions on a real Ray cluster of several nodes on this machine: the same bytes as here,
whatever ends in the middle."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
from custom_steps import FATAL
from dataset_facts import rejects_of, sums
from image_files import images
from object_server import ObjectServer

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
from shardctl.system.stores import open_store
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
    if NODE and sample["key"] > "1.png":
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


def until(condition: Callable[[], Any]) -> Any:
    """Return what a condition returns once that is true."""
    due = time.monotonic() + LIMIT_SECONDS
    while not (found := condition()):
        assert time.monotonic() < due, "it does not happen"
        time.sleep(0.02)
    return found


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
    """A head without CPUs, and two nodes that build one shard at a time, and know the way to the
    object store."""
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
            for _ in range(2):
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
    given = {
        "recipe": {
            "transform": [{"name": "resize", "size": 40}, {"name": "crop", "size": 32}],
            "store": "raw",
        }
    }
    return photos, {**given, "split": "train=0.7,val=0.3", "shuffle": 1, "samples_per_shard": 9}


def texts_cleaned(photos: Path, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    source = tmp_path / "lines.jsonl"
    source.write_text(
        "".join(json.dumps({"text": f"line {n % 50} " * 30, "n": n}) + "\n" for n in range(200))
    )
    return source, {"recipe": {"transform": [{"name": "deduplicate"}]}, "samples_per_shard": 20}


def records_of_which_a_late_one_has_another_type(
    photos: Path, tmp_path: Path
) -> tuple[Path, dict[str, Any]]:
    """So that the types are found once more, and the job is begun anew in the same folder."""
    source = tmp_path / "lines.jsonl"
    source.write_text(
        "".join(json.dumps({"n": n if n != 29_990 else "many"}) + "\n" for n in range(30_000))
    )
    return source, {"samples_per_shard": 4000}


def photos_some_of_which_a_function_refuses(
    photos: Path, tmp_path: Path
) -> tuple[Path, dict[str, Any]]:
    source = images(tmp_path / "in", *(f"{n:02d}.png" for n in range(30)))
    return source, {"recipe": recipe("refuse"), "samples_per_shard": 7}


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
def test_the_dataset_is_that_of_a_local_run(case, photos, tmp_path):
    source, options = case(photos, tmp_path)
    here = shardctl.convert(source, tmp_path / "here", workers=1, **options)
    told: list[WorkDone] = []
    there = shardctl.convert(
        source, tmp_path / "there", engine="ray", listener=Listener(progress=told.append), **options
    )
    assert sums(tmp_path / "there") == sums(tmp_path / "here")
    assert (there.samples, there.rejected, there.reasons) == (
        here.samples,
        here.rejected,
        here.reasons,
    )
    assert sum((progress.samples for progress in told), 0) == there.samples
    assert shardctl.verify(tmp_path / "there").findings == ()


@pytest.mark.thorough
@pytest.mark.usefixtures("connected")
def test_nodes_write_to_an_object_store_which_alone_they_share(photos, bucket, tmp_path):
    source, options = photos_split_and_shuffled(photos, tmp_path)
    shardctl.convert(source, tmp_path / "here", workers=1, **options)
    there = shardctl.convert(source, f"{bucket}/out", engine="ray", **options)
    assert there.samples == 60
    store = open_store(f"{bucket}/out")
    base = json.loads(store.get("manifest.json").to_pybytes())["base"]
    assert (
        store.get(f"{base}SHA256SUMS").to_pybytes()
        == (tmp_path / "here" / "SHA256SUMS").read_bytes()
    )
    assert shardctl.verify(f"{bucket}/out").findings == ()


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
def test_a_fatal_input_costs_one_input(tmp_path, function, error, options):
    source = images(tmp_path / "in", *(f"{n:02d}.png" for n in range(12)))
    given = {"recipe": recipe(function), "samples_per_shard": 4, **options}
    shardctl.convert(source, tmp_path / "here", workers=1, **given)
    result = shardctl.convert(source, tmp_path / "there", engine="ray", **given)
    (reject,) = rejects_of(tmp_path / "there")
    assert (reject.key, reject.error, result.samples) == ("07.png", error, 11)
    assert sums(tmp_path / "there") == sums(tmp_path / "here")


@pytest.mark.thorough
@pytest.mark.usefixtures("connected")
def test_a_node_that_is_removed_costs_the_shards_that_it_was_building(tmp_path, cluster, folder):
    source = images(tmp_path / "in", *(f"{n:02d}.png" for n in range(20)))
    given = {"recipe": recipe("hold_where_doomed"), "samples_per_shard": 2}
    lines: list[str] = []
    with another_node(cluster, NODE="doomed") as node:

        def remove() -> None:
            until(lambda: held(folder))
            cluster.remove_node(node, allow_graceful=False)
            (folder / "removed").touch()

        remover = threading.Thread(target=remove)
        remover.start()
        result = shardctl.convert(
            source,
            tmp_path / "there",
            engine="ray",
            listener=Listener(on_line=lines.append),
            **given,
        )
        remover.join()
    assert (result.samples, result.rejected) == (20, 0)
    assert any("is lost and built again (NodeDiedError" in line for line in lines)
    until(lambda: all(map(is_gone, held(folder))))
    shardctl.convert(source, tmp_path / "here", workers=1, **given)
    assert sums(tmp_path / "there") == sums(tmp_path / "here")


@pytest.mark.thorough
@pytest.mark.usefixtures("connected")
def test_a_process_of_a_node_that_ends_costs_its_shard(tmp_path, folder):
    source = images(tmp_path / "in", *(f"{n}.png" for n in range(9)))
    given = {"recipe": recipe("end_agent_once"), "samples_per_shard": 3}
    shardctl.convert(source, tmp_path / "here", workers=1, **given)
    (folder / "ended").unlink()
    told: list[WorkDone] = []
    shardctl.convert(
        source, tmp_path / "there", engine="ray", listener=Listener(progress=told.append), **given
    )
    assert (folder / "ended").exists()
    assert sums(tmp_path / "there") == sums(tmp_path / "here")
    assert [sum(column) for column in zip(*map(astuple, told), strict=True)][:3] == [9, 9, 0], (
        "what was lost is taken back"
    )


@pytest.mark.thorough
@pytest.mark.usefixtures("connected")
def test_a_shard_that_is_lost_every_time_ends_the_conversion(tmp_path, out):
    source = images(tmp_path / "in", "0.png")
    with pytest.raises(
        WorkerError,
        match=r"shard 0 was lost 4 times .* on node .* \(WorkerCrashedError: .*nothing was comm",
    ):
        shardctl.convert(source, out, engine="ray", recipe=recipe("end_agent"))
    assert not (out / "manifest.json").exists()


@pytest.mark.thorough
@pytest.mark.usefixtures("connected")
def test_errors_are_those_of_a_local_run_and_name_the_node(tmp_path, out):
    source = images(tmp_path / "in", *(f"{n}.png" for n in range(9)))
    given: dict[str, Any] = {"engine": "ray", "samples_per_shard": 3}
    with pytest.raises(TooManyRejectsError):
        shardctl.convert(source, out, recipe=recipe("refuse"), max_rejects=0, **given)
    listener = Listener(announce=lambda _: source.rename(tmp_path / "away") and None)
    with pytest.raises(
        SourceGoneError,
        match=r"^node .* \(\w{8}\): .*in: the source has gone away.* 0 of 3 shards are done",
    ):
        shardctl.convert(source, tmp_path / "gone", listener=listener, **given)


@pytest.mark.thorough
@pytest.mark.usefixtures("connected")
def test_lines_of_functions_and_what_each_node_has_done_are_told(tmp_path, out):
    source = images(tmp_path / "in", *(f"{n}.png" for n in range(4)))
    lines: list[str] = []
    options = {"recipe": recipe("speak"), "samples_per_shard": 1}
    shardctl.convert(source, out, engine="ray", listener=Listener(on_line=lines.append), **options)
    said = [line.partition("): ") for line in lines if line.startswith("node ")]
    assert sorted(text for _, _, text in said if text.startswith("working")) == [
        f"working on {n}.png" for n in range(4)
    ]
    done = [text for _, _, text in said if "inputs/s" in text]
    assert sum(int(text.split()[0]) for text in done) == 4, "shards of all nodes"


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["shardctl", "function"])
@pytest.mark.usefixtures("connected")
def test_a_node_that_would_make_other_bytes_is_refused(tmp_path, out, cluster, folder, what):
    """The other nodes wait until the conversion has ended."""
    other = tmp_path / "other"
    if what == "shardctl":
        shutil.copytree(
            Path(shardctl.__file__).parent,
            other / "shardctl",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        (other / "shardctl" / "version.py").write_text('__version__ = "0.0.7"\n')
    else:
        other.mkdir()
        (other / "ray_steps.py").write_text(f"{STEPS}\nanother = True\n")
    source = images(tmp_path / "in", *(f"{n}.png" for n in range(9)))
    reasons = {
        "shardctl": rf"it has shardctl 0\.0\.7, and this machine {__version__}; install the same",
        "function": r"it has other versions \(ray_steps:hold \w{12} → \w{12}\); install the "
        r"same",
    }
    with (
        another_node(cluster, PYTHONPATH=str(other)),
        pytest.raises(InstallError, match=rf"^node .*: {reasons[what]}"),
    ):
        shardctl.convert(
            source,
            out,
            engine="ray",
            recipe=recipe("hold"),
            samples_per_shard=1,
            input_timeout=20.0,
        )
    until(lambda: all(map(is_gone, held(folder))))


@pytest.mark.thorough
@pytest.mark.usefixtures("connected")
def test_a_connection_that_is_there_is_used_and_stays(tmp_path, out, cluster):
    source = images(tmp_path / "in", "0.png")
    shardctl.convert(source, out, engine=f"ray:{cluster.address}")
    assert ray.is_initialized()
    with pytest.raises(
        UsageError,
        match=r"already uses the Ray cluster at .*, not 127\.0\.0\.9",
    ):
        shardctl.convert(source, tmp_path / "other", engine="ray:127.0.0.9:1")


@contextmanager
def command(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run shardctl in a process of its own."""
    whole = [sys.executable, "-m", "shardctl", *map(str, arguments)]
    with subprocess.Popen(
        whole, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_the_nodes_and_the_same_command_resumes(
    tmp_path, cluster, folder, number, monkeypatch
):
    """Some shards are done, and others wait in a function when it comes."""
    monkeypatch.setenv("PYTHONPATH", str(folder))
    names = [f"{n}.png" for n in range(8)]
    source = images(tmp_path / "in", *names)
    options = (
        "--transform",
        "ray_steps:hold",
        "--store",
        "png",
        "--samples-per-shard",
        2,
        "--json",
    )
    given = ("convert", source, tmp_path / "there", *options, "--engine", f"ray:{cluster.address}")
    with command("convert", source, tmp_path / "here", *options, "--workers", 1) as local:
        assert local.wait(LIMIT_SECONDS) == 0
    staging = tmp_path / "there" / ".shardctl"
    with command(*given) as running:
        until(lambda: list(staging.glob("*/done/*.arrow")) or running.poll() is not None)
        until(lambda: held(folder) or running.poll() is not None)
        started = time.monotonic()
        running.send_signal(number)
        out, err = running.communicate(timeout=LIMIT_SECONDS)
        assert time.monotonic() - started < 5
    assert (running.returncode, err.strip()) == (130, "")
    assert "1 of 4 shards are done; run the same command again" in json.loads(out)["error"]
    until(lambda: all(map(is_gone, held(folder))))
    (folder / "released").touch()
    with command(*given) as resumed:
        out, err = resumed.communicate(timeout=LIMIT_SECONDS)
    assert (resumed.returncode, err, json.loads(out)["status"]) == (0, "", "resumed")
    assert sums(tmp_path / "there") == sums(tmp_path / "here")


@pytest.mark.thorough
def test_a_file_in_the_current_folder_takes_the_place_of_no_module_on_a_node(
    tmp_path, cluster, monkeypatch
):
    """The current folder may be a dataset of somebody else; people's functions are found in it all
    the same."""
    images(tmp_path / "in", "a.png")
    (tmp_path / "xxhash.py").write_text(
        f'open({str(tmp_path / "ran")!r}, "w")\nraise SystemExit(9)\n'
    )
    (tmp_path / "found_here.py").write_text("def same(sample):\n    return sample\n")
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    installed = str(Path(sys.executable).with_name("shardctl"))
    given = (
        "convert",
        "in",
        "out",
        "--transform",
        "found_here:same",
        "--store",
        "png",
        "--engine",
        "ray",
    )
    ran = subprocess.run([installed, *given], cwd=tmp_path, capture_output=True, text=True)
    assert (ran.returncode, "rejected" in ran.stdout) == (0, False), ran.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.thorough
def test_a_cluster_that_is_not_there_is_told_before_the_work(tmp_path, out, monkeypatch):
    source = images(tmp_path / "in", "0.png")
    with command("convert", source, out, "--engine", "ray:127.0.0.1:1") as running:
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
