"""Loaders whose batches are made by worker processes: they give what threads give, and leave
nothing behind."""

from __future__ import annotations

import copy
import errno
import gc
import io
import itertools
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from dataset_files import shard_in
from handmade import write_dataset
from PIL import Image as Pictures
from programs import run_python
from remote_datasets import same

import shardctl
from shardctl.errors import DatasetError, UsageError, WorkerError
from shardctl.format.layout import ENCODED_IMAGE
from shardctl.loader.loader import Loader
from shardctl.loader.processes.worker import Segment, file_in_memory
from shardctl.system.mmap import SharedPages

SAMPLES, WIDE = 120, 20_000
FIELDS = pa.schema(
    {
        "key": pa.string(),
        "label": pa.int64(),
        "image": ENCODED_IMAGE,
        "wide": pa.fixed_shape_tensor(pa.uint16(), [WIDE]),
        "narrow": pa.fixed_shape_tensor(pa.uint8(), [300]),
        "tokens": pa.list_(pa.int32()),
        "score": pa.float32(),
    }
)


def png(number: int) -> tuple[bytes, str]:
    target = io.BytesIO()
    pixels = np.random.default_rng(number).integers(
        0, 255, (40, 40 + number % 2, 3), dtype=np.uint8
    )
    Pictures.fromarray(pixels).save(target, "PNG")
    return target.getvalue(), "x.png"


def make(root: Path, compression: str = "none") -> Path:
    rows = (
        (
            f"k{n:03d}",
            n % 7,
            png(n),
            np.full(WIDE, n, np.uint16),
            np.full(300, n, np.uint8),
            list(range(n * 37 % 900)),
            None if n % 9 == 0 else n / 4,
        )
        for n in range(SAMPLES)
    )
    write_dataset(
        root,
        FIELDS,
        rows,
        40,
        compression,
        sample_bytes=100_000 if compression == "none" else 50_000,
    )
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("processes") / "out")


@pytest.fixture(scope="module")
def loader(root: Path) -> Iterator[Loader]:
    """A loader with two processes, which several tests use: its processes stay from one iteration
    to the next."""
    made = shardctl.open(root).loader(8, shuffle=True, seed=3, processes=2, threads=2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def epochs(root: Path) -> list[list[dict[str, Any]]]:
    """The first two epochs of the same loader with threads."""
    threads = shardctl.open(root).loader(8, shuffle=True, seed=3, threads=2)
    return [list(threads), list(threads)]


def assert_same(found: Any, expected: Any) -> None:
    """Fail unless both are the same in values and types."""
    assert same(found, expected)


@pytest.mark.thorough
def test_batches_are_those_of_threads_and_stay_as_they_are_while_others_are_made(loader, epochs):
    loader.set_epoch(0)
    kept = [list(loader), list(loader)]
    views = [batch["wide"][1:] for epoch in kept for batch in epoch]
    stats = loader.stats()
    assert (stats.processes, stats.threads, stats.samples, stats.batches) == (2, 2, SAMPLES, 15)
    assert stats.processes_cpu_s > 0
    assert_same(kept, epochs)
    assert all(
        batch[name].flags.writeable for batch in kept[0] for name in ("wide", "narrow", "label")
    )
    first = kept[0][0]  # the others may lie behind it
    assert first["wide"].ctypes.data % 64 == 0
    kept[0][0]["wide"][:] = 7
    del kept, first
    gc.collect()
    for _ in loader:
        pass
    for view, batch in zip(
        views[1:], [batch for epoch in epochs for batch in epoch][1:], strict=True
    ):
        assert_same(view, batch["wide"][1:])
    assert (views[0] == 7).all()


@pytest.mark.thorough
@pytest.mark.skipif(
    not Path("/proc/self/maps").exists(), reason="the system does not tell what is mapped"
)
def test_memory_is_used_again_when_nothing_refers_to_it(loader):
    for _ in range(20):
        for _ in loader:
            pass
    segments = {
        line.split()[4]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "memfd:shardctl" in line
    }
    assert 0 < len(segments) <= 60, "20 epochs have 300 batches"
    descriptors = [Path(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    assert not any(
        "memfd:shardctl" in str(each.readlink()) for each in descriptors if each.is_symlink()
    )


def test_an_iteration_continues_from_a_state_of_threads_and_the_reverse(root, loader, epochs):
    threads = shardctl.open(root).loader(8, shuffle=True, seed=3)
    loader.set_epoch(1)
    assert_same(list(itertools.islice(loader, 6)), epochs[1][:6])
    state = loader.state_dict()
    for each in (threads, loader):
        each.load_state_dict(state)
        assert_same(list(each), epochs[1][6:])
    assert loader.state_dict() == threads.state_dict()


def test_a_function_is_called_with_every_batch_in_the_threads_of_the_loader(root, loader, epochs):
    def taken(batch: dict[str, Any]) -> tuple[dict[str, Any], str]:
        return batch, threading.current_thread().name

    def failing(batch: dict[str, Any]) -> int:
        return 1 // (batch["key"] != epochs[1][5]["key"])

    loader.set_epoch(0)
    for each in (loader, shardctl.open(root).loader(8, shuffle=True, seed=3, threads=2)):
        batches, names = zip(*each.map(taken), strict=True)
        assert_same(list(batches), epochs[0])
        assert all("shardctl-loader" in name for name in names)
        with pytest.raises(ZeroDivisionError):
            list(each.map(failing))
        assert each.next_epoch == 2


@pytest.mark.parametrize(
    ("processes", "compression", "options"),
    [
        (
            2,
            "zstd",
            {
                "shuffle": "window",
                "pad": {"tokens": -1},
                "dtype": {"tokens": "int64", "wide": "float32"},
                "normalize": {"image": (100, 50)},
                "crop": 32,
                "crop_from": "random",
                "unmoved": ["wide", "narrow", "tokens", "label"],
                "flip": True,
                "channels_first": True,
                "bucket": {"tokens": 2},
            },
        ),
        (
            1,
            "none",
            {
                "repeat": 2,
                "remainder": "drop",
                "rank": 1,
                "world_size": 2,
                "decode": False,
                "reuse": True,
            },
        ),
    ],
)
def test_whatever_the_options_are_batches_are_those_of_threads(
    tmp_path, processes, compression, options
):
    ds = shardctl.open(make(tmp_path / "out", compression))
    loader, threads = (
        ds.loader(16, seed=5, processes=count, profile=True, **options)
        for count in (processes, None)
    )
    assert_same(*([copy.deepcopy(batch) for batch in each] for each in (loader, threads)))
    assert len(loader) == len(threads)
    assert loader.state_dict() == threads.state_dict()
    assert sum(loader.stats().stages.values()) > 0
    loader.close()


def test_a_mixture_of_filtered_datasets(root):
    ds = shardctl.open(root)
    mix = shardctl.mix([ds.filter("label < 3"), ds.limit(50)], [2, 1])
    threads, loader = (
        mix.loader(16, seed=1, shuffle=True, processes=processes) for processes in (None, 1)
    )
    assert_same([*loader, *loader], [*threads, *threads])
    loader.close()


def test_damage_is_named_or_skipped_and_counted_as_by_threads(tmp_path):
    root = make(tmp_path / "out")
    encoded = shardctl.open(root).take([70], decode=False)["image"][0]
    shard = shard_in(root, "train-00001")
    shard.write_bytes(shard.read_bytes().replace(encoded, b"x" * len(encoded)))
    ds, found = shardctl.open(root), []
    for processes in (None, 1):
        loader, skipping = (
            ds.loader(8, processes=processes, on_error=each) for each in ("raise", "skip")
        )
        keys: list[str] = []
        with pytest.raises(
            DatasetError, match="row 30, key 'k070': image: it does not decode"
        ) as caught:
            keys.extend(key for batch in loader for key in batch["key"])
        found.append((str(caught.value), keys, list(skipping)))
        assert len(keys) == 64, "all that came before it"
        assert skipping.stats().skipped == 1
        loader.close()
        skipping.close()
    assert_same(*found)


@pytest.mark.thorough
def test_a_dataset_that_was_replaced_before_the_processes_opened_it(tmp_path):
    root = make(tmp_path / "out")
    loader = shardctl.open(root).loader(8, processes=1)
    root.rename(tmp_path / "old")
    make(tmp_path / "other", "zstd").rename(root)
    with pytest.raises(DatasetError, match="generation 1 was swept while it was read"):
        next(iter(loader))
    assert loader.process_ids == []


def test_a_process_that_dies_is_named_and_the_next_iteration_has_new_ones(root):
    loader = shardctl.open(root).loader(1, processes=2, threads=2, columns=["wide"])
    batches = iter(loader)
    next(batches)
    first = loader.process_ids
    os.kill(first[1], signal.SIGKILL)
    with pytest.raises(WorkerError, match=rf"2 of 2 .*{first[1]}.* was killed by signal 9"):
        list(batches)
    assert len(list(loader)) == SAMPLES
    assert not set(first) & set(loader.process_ids)
    batches = iter(loader)
    next(batches)
    loader.close()
    with pytest.raises(WorkerError, match="was closed while it was read"):
        list(batches)
    assert loader.process_ids == []


@pytest.mark.thorough
def test_processes_end_with_the_loader_and_ignore_an_interrupt(root):
    loader = shardctl.open(root).loader(16, processes=1, columns=["label"])
    batches = iter(loader)
    next(batches)
    (process,) = loader.process_ids
    os.kill(process, signal.SIGINT)
    assert len(list(batches)) == 7
    assert loader.process_ids == [process]
    del batches, loader
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(shardctl.__file__).parent.parent)}
"""For a script elsewhere that is to use the same shardctl."""


SCRIPT = """
import sys
import shardctl
print("begun", flush=True)
loader = shardctl.open(sys.argv[1]).loader(8, shuffle=True, processes=2, threads=2)
batches = iter(loader)
kept = [next(batches)]
print(*loader.process_ids, flush=True)
if len(sys.argv) > 2:
    sys.stdin.read()
"""
"""A program without `if __name__ == "__main__"`: a second process that imported it would print
too."""


@pytest.mark.thorough
def test_a_script_without_a_guard_runs_once_and_ends_in_the_middle_of_an_epoch(root, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    # The processes have its stdout and stderr, so that run() comes back only when all of them are
    # gone.
    ran = subprocess.run(
        [sys.executable, script, root], capture_output=True, text=True, timeout=60, env=ENVIRONMENT
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    begun, *processes = ran.stdout.split()
    assert begun == "begun"
    assert_ended(processes)


def assert_ended(processes: list[str]) -> None:
    """Fail unless the process that had these has waited for them: they are not even dead children
    that nobody waited for."""
    assert len(processes) == 2
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(int(process), 0)


@contextmanager
def waiting_program(
    root: Path, **options: Any
) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Start a program that waits in the middle of an epoch, and yield it with the numbers of its
    loader's processes."""
    command = [sys.executable, "-c", SCRIPT, root, "wait"]
    options |= dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, env=ENVIRONMENT, **options) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "begun\n"
        yield program, program.stdout.readline().split()


@pytest.mark.thorough
def test_an_interrupt_of_the_whole_group_ends_a_program_with_one_traceback_and_its_processes(
    root,
):
    with waiting_program(root, start_new_session=True) as (program, processes):
        os.killpg(program.pid, signal.SIGINT)  # as a terminal does at Ctrl-C
        _, errors = program.communicate(timeout=60)
    assert program.returncode == -signal.SIGINT
    assert errors.count("Traceback") == 1
    assert errors.endswith("KeyboardInterrupt\n")
    assert_ended(processes)


@pytest.mark.thorough
def test_processes_of_a_program_that_is_killed_end(root):
    with waiting_program(root) as (program, processes):
        program.kill()
        # ends when nobody has its stdout any more: its processes neither
        _, errors = program.communicate(timeout=60)
    assert len(processes) == 2
    assert errors == ""


def read_in_fork(loader: Loader, held: Any, before: Any, go_on: Any, queue: Any) -> None:
    """Read an epoch in a forked process; then say whether what the parent had is as it was, after
    the parent has read on."""
    keys = [key for batch in loader for key in batch["key"]]
    queue.put((keys, loader.process_ids))
    loader.close()
    go_on.wait(60)
    queue.put(bool((held == before).all()))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_has_processes_of_its_own_and_keeps_the_batches_it_saw(root, loader):
    loader.set_epoch(0)
    batches = iter(loader)
    held = next(batches)["wide"]
    before = held.copy()
    mine = loader.process_ids
    context = multiprocessing.get_context("fork")
    queue, go_on = context.Queue(), context.Event()
    child = context.Process(target=read_in_fork, args=(loader, held, before, go_on, queue))
    child.start()
    keys, theirs = queue.get(timeout=60)
    del held
    rest = list(batches)
    assert len(rest) == 14
    del rest
    again = [key for batch in loader for key in batch["key"]]
    assert loader.process_ids == mine
    go_on.set()
    assert queue.get(timeout=60), "shared memory that a forked process sees is not used again"
    child.join(60)
    assert not set(mine) & set(theirs)
    assert sorted(keys) == sorted(again) == [f"k{n:03d}" for n in range(SAMPLES)]


FORKS = """
import os, sys
kept, follow = [], []

def take():
    if follow:
        kept.append(next(batches)["wide"])  # the first was made before it was asked for; the others are made now
        kept.append(next(batches)["wide"])
        kept.append(next(batches)["wide"])

os.register_at_fork(before=take, after_in_parent=kept.clear)  # before shardctl: its own are called first, and last
import shardctl

loader = shardctl.open(sys.argv[1]).loader(8, processes=1, threads=1, prefetch=1, repeat=9, columns=["wide"])
batches = iter(loader)
kept.append(next(batches)["wide"])
follow.append(True)
mine, theirs = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    before = [array.copy() for array in kept]
    os.write(mine[1], b"x")
    os.read(theirs[0], 1)
    os._exit(sum((array != other).any() for array, other in zip(kept, before, strict=True)))
os.read(mine[0], 1)
for batch in batches:
    del batch
os.write(theirs[1], b"x")
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
"""In the parent, batches end at once after the fork. It prints how many of those that the child
keeps were overwritten."""


@pytest.mark.thorough
def test_batches_that_a_forked_process_keeps_and_its_parent_loses_at_once_are_not_overwritten(
    root,
):
    ran = run_python(FORKS, root, env={**ENVIRONMENT, "PYTHONWARNINGS": "ignore"})
    assert (ran.stdout, ran.stderr) == ("0\n", "")


FEW_FILES = """
import os, resource, sys
import shardctl
from shardctl.errors import WorkerError

ds = shardctl.open(sys.argv[1])
loaders = [ds.loader(40, processes=1, threads=1) for _ in range(4)]
for loader in loaders:
    loader.start()
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
cases = (0, hard), (0, 64), (1, 64), (2, 64), (0, 64)
for (free, most), loader in zip(cases, [*loaders, ds.loader(40, processes=1, threads=1)], strict=True):
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
    held = []
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    for descriptor in held[:free]:
        os.close(descriptor)
    try:
        print(len(next(iter(loader))["one"]))
    except WorkerError as error:
        print(error)
    for descriptor in held[free:]:
        os.close(descriptor)
print(len(list(loaders[1])))
"""
"""Reads batches with two arrays in shared memory where the limit of files can be raised, and where
0, 1 and 2 may be opened.

Then it begins to where none may be.
"""


@pytest.mark.thorough
def test_a_process_without_file_descriptors_is_told_so_and_does_not_hang(out):
    wide = pa.fixed_shape_tensor(pa.uint16(), [WIDE])
    fields = pa.schema({"key": pa.string(), "one": wide, "two": wide})
    rows = ((f"k{n}", *[np.full(WIDE, n, np.uint16)] * 2) for n in range(80))
    write_dataset(out, fields, rows, 80, sample_bytes=100_000)
    ran = run_python(FEW_FILES, out, env=ENVIRONMENT)
    found = ran.stdout.splitlines()
    assert ran.stderr == ""
    assert (found[0], found[3]) == ("40", "40")
    assert all("ulimit -n" in found[place] for place in (1, 2, 4))
    assert found[5:] == ["2"], "as soon as there are some, the next iteration has new processes"


def test_a_worker_without_file_descriptors_says_so(monkeypatch):
    def refused(*_: Any) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("shardctl.loader.processes.worker.file_in_memory", refused)
    with pytest.raises(WorkerError, match=r"8192 bytes of shared memory; raise .*ulimit -n"):
        Segment(1, 8192)


SLOW_TO_GO_ON = """
import socket, time
send, sent = socket.send_fds, []

def slow(*arguments):
    sent.append(send(*arguments))
    if len(sent) == 1:
        time.sleep(0.3)

socket.send_fds = slow
"""
"""Between the first sending of new memory and what that thread does next, others have time to be
told that it is free."""


def test_new_memory_that_is_free_at_once_is_not_sent_twice(root, tmp_path, monkeypatch):
    # worker processes have the path of this one
    (tmp_path / "sitecustomize.py").write_text(SLOW_TO_GO_ON)
    monkeypatch.syspath_prepend(tmp_path)
    options = {"processes": 1, "threads": 3, "prefetch": 3, "columns": ["wide"], "repeat": 3}
    loader = shardctl.open(root).loader(8, **options)
    found = 0
    for batch in loader:
        found += len(batch["wide"])
        del batch
    assert found == 3 * SAMPLES
    loader.close()


@pytest.mark.thorough
def test_starting_twice_closing_and_errors_of_the_training_loop(root):
    loader = shardctl.open(root).loader(16, shuffle=True, processes=1, columns=["key", "wide"])
    loader.start()
    first = loader.process_ids
    loader.start()
    assert loader.process_ids == first
    with pytest.raises(RuntimeError, match="of the training loop"):  # noqa: PT012 - the loop
        for _ in loader:
            raise RuntimeError("of the training loop")
    copied = pickle.loads(pickle.dumps(loader))
    assert len(list(loader)) == len(list(copied)) == 8
    assert loader.process_ids == first != copied.process_ids
    loader.close()
    loader.close()
    assert len(list(loader)) == 8
    assert loader.process_ids not in ([], first)
    for each in (loader, copied):
        each.close()
        assert each.process_ids == []


def test_impossible_numbers_of_processes_are_refused(root):
    for options in (
        {"processes": 0},
        {"processes": "2"},
        {"processes": 3, "threads": 2},
        {"processes": 2, "cache": 10**6},
    ):
        with pytest.raises(UsageError, match="process"):
            shardctl.open(root).loader(8, **options)


@pytest.mark.parametrize("with_memfd", [True, False])
def test_memory_that_is_shared_has_no_name(with_memfd, monkeypatch):
    if not with_memfd:
        pytest.importorskip("_posixshmem")
        monkeypatch.delattr(os, "memfd_create", raising=False)
    before = set(Path("/dev/shm").glob("*"))
    descriptor = file_in_memory(8192)
    pages = [SharedPages(descriptor, 8192) for _ in range(2)]
    os.close(descriptor)
    pages[0].bytes()[5000] = 9
    assert pages[1].bytes()[5000] == 9
    assert before >= set(Path("/dev/shm").glob("*"))


@pytest.mark.thorough
def test_more_processes_than_batches_and_no_samples(root):
    loader = shardctl.open(root).loader(SAMPLES, processes=2, columns=["key"])
    assert [len(batch["key"]) for batch in loader] == [SAMPLES]
    loader.close()
    loader = shardctl.open(root).limit(0).loader(8, processes=1)
    assert list(loader) == []
    loader.close()
