"""The pool of worker processes, with tasks of its own: what it promises of processes that print,
die, hang and fork."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from in_this_process import children_of, command_line
from kept_servers import KeptServers
from programs import run_python

import shardctl
from shardctl.errors import WorkerError
from shardctl.making.convert import Listener
from shardctl.system import file_lease
from shardctl.system.processes import forkserver, pool
from shardctl.system.processes.pool import Limits, Pool, Task
from shardctl.system.processes.worker_state import Death

TASKS = """
import os, signal, sys, threading, time
import numpy as np

def handle(task, tell, progress):
    return globals()[task["do"]](task)

def double(task):
    return 2 * task["number"]

def who(task):
    return [os.getpid(), os.getppid(), threading.active_count()]

def say(task):
    print("printed", task["number"])
    print("\\x1b[2Jto stderr", file=sys.stderr)
    os.write(1, b"no end of line")
    return None

def flood(task):
    os.write(2, b"x" * 1_000_000 + b"\\n")
    return None

def draw(task):
    return int(np.random.randint(2**31))

def die_with_a_child(task):
    sys.stderr.write("last words")
    sys.stderr.flush()
    if os.fork() == 0:
        time.sleep(60)
    os.kill(os.getpid(), signal.SIGKILL)

def die_with_a_command(task):
    os.posix_spawn("/bin/sleep", ["sleep", "60"], os.environ)  # as os.system does: nothing of Python runs in the child
    os.kill(os.getpid(), signal.SIGKILL)

def read(task):
    with open(task["path"]) as pipe:
        return pipe.read()

def read_stdin(task):
    return sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fork_servers: KeptServers
) -> Iterator[None]:
    (tmp_path / "pool_tasks.py").write_text(TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    with fork_servers.unused():
        yield


class Listening:
    """A pool, what its workers have answered and printed, and how they have died."""

    def __init__(self, workers: int | str) -> None:
        self.answers: list[Any] = []
        self.said: list[str] = []
        self.deaths: list[Death] = []
        self.pool = Pool("pool_tasks", workers, Limits(), self.said.append)

    def run(self, *tasks: Task) -> list[Any]:
        self.answers.clear()
        self.pool.run(tasks, lambda task, message: self.answers.append(message["done"]), self._died)
        return list(self.answers)

    def _died(self, task: Task, death: Death) -> None:
        self.deaths.append(death)


@pytest.fixture
def three() -> Iterator[Listening]:
    listening = Listening(3)
    yield listening
    listening.pool.close()


EARLIER: set[int] = set()
"""Child processes that other tests have left, such as multiprocessing's resource tracker."""


def children() -> list[int]:
    return [child for child in children_of(os.getpid()) if child not in EARLIER]


@pytest.fixture(autouse=True)
def earlier() -> None:
    EARLIER.clear()
    EARLIER.update(children_of(os.getpid()))


@contextlib.contextmanager
def ending(process: int) -> Iterator[None]:
    """Fail unless a process ends after the block."""
    ended = os.pidfd_open(process)
    yield
    assert select.select([ended], [], [], 20)[0]
    os.close(ended)


def alive(process: int) -> bool:
    """Tell whether a process is more than the record of its end that its new parent has not looked
    at."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_no_process_starts_before_there_is_a_task_and_no_more_than_there_are_tasks(
    three,
):
    assert children() == []
    assert three.run() == []
    assert children() == []
    ((worker, server, threads),) = three.run({"do": "who"})
    assert children() == [server]
    assert threads == 2, "its own and the one that listens"
    assert len({answer[0] for answer in three.run(*[{"do": "who"}] * 9)} | {worker}) <= 3
    three.pool.close()
    assert not alive(worker)
    assert children() == []


def test_workers_that_are_let_go_end_and_the_next_run_has_others(three):
    ((first, server, _),) = three.run({"do": "who"})
    with ending(first):
        three.pool.let_go()
    ((second, same, _),) = three.run({"do": "who"})
    assert (second != first, same) == (True, server)
    three.pool.let_go()
    three.pool.close()
    assert not alive(first)
    assert not alive(second)
    assert children() == []


def test_a_pool_whose_end_is_interrupted_closes_no_file_of_others(three, monkeypatch):
    three.run(*[{"do": "who"}] * 9)
    of_pool, close = set(os.listdir("/proc/self/fd")), os.close

    def interrupted(descriptor: int) -> None:
        close(descriptor)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        three.pool.let_go()
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(len(of_pool))]
    three.pool.close()
    for descriptor in taken:
        os.close(descriptor)
    assert children() == []


FORKED = """
import json, os, sys, threading
from pathlib import Path
from shardctl.system.machine import import_without_threads
import_without_threads()
from shardctl.system.processes.pool import Limits, Pool
from shardctl.system.processes.forkserver import forked_early

answers = []
def work(pool, do):
    pool.run([{"do": do}], lambda task, message: answers.append(message["done"]), lambda task, death: None)

print("printed once, though it waits in a buffer when this process is forked")
if sys.argv[1] == "threads":
    ended = threading.Event()
    threading.Thread(target=ended.wait, daemon=True).start()
with forked_early("pool_tasks", 0):
    pool = Pool("pool_tasks", 2, Limits())
    work(pool, "who")
    kind = Path(f"/proc/{answers[0][1]}/cmdline").read_bytes() == Path("/proc/self/cmdline").read_bytes()
    pool.close()
    work(pool, "who")
    pool.close()
with forked_early("pool_tasks", 0):
    pass
try:
    left = os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    left = None
print(json.dumps([kind, answers[0][2], left]))
"""


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(("how", "forked"), [("alone", True), ("threads", False)])
def test_a_process_without_threads_is_forked_and_one_with_threads_is_not(tmp_path, how, forked):
    path = {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "error"}
    ran = run_python(FORKED, how, env={**os.environ, **path})
    assert ran.stderr == ""
    printed, answer = ran.stdout.splitlines()
    assert printed == "printed once, though it waits in a buffer when this process is forked"
    assert json.loads(answer) == [forked, 2, None]


def test_what_workers_print_is_heard_line_by_line(three):
    three.run({"do": "say", "number": 7})
    assert three.said == ["worker 1: printed 7", "worker 1: \x1b[2Jto stderr"]


@pytest.mark.parametrize(
    ("task", "words"), [("die_with_a_child", "last words"), ("die_with_a_command", "")]
)
def test_a_death_is_noticed_though_a_child_of_the_worker_lives_on(three, task, words):
    started = time.monotonic()
    assert three.run({"do": task}) == []
    assert time.monotonic() - started < 30
    (death,) = three.deaths
    assert (death.code, death.place, death.last_words) == (-signal.SIGKILL, None, words)


@pytest.mark.thorough
def test_workers_do_not_draw_the_same_random_numbers():
    drawn = set()
    for workers in (1, 1, 3):
        listening = Listening(workers)
        drawn |= set(listening.run(*[{"do": "draw"}] * workers))
        listening.pool.close()
    assert len(drawn) == 5


def test_a_task_that_reads_the_standard_input_gets_nothing(three):
    assert three.run({"do": "read_stdin"}) == [""]


@pytest.mark.thorough
def test_workers_end_with_the_process_that_they_are_forked_from(three):
    ((worker, server, _),) = three.run({"do": "who"})
    with ending(worker):
        os.kill(server, signal.SIGKILL)
    assert three.run({"do": "double", "number": 4}) == []
    assert [death.code for death in three.deaths] == [-signal.SIGKILL]
    assert three.run({"do": "double", "number": 4}) == [8]


def test_a_converter_that_has_nothing_to_do_starts_no_process(out, photos, cli, monkeypatch):
    shardctl.convert(photos, out, workers=0)
    monkeypatch.setattr(forkserver, "ForkServer", None)  # it could not be made
    assert cli("convert", photos, out).out.startswith(f"{out} is up to date")


def test_a_converter_that_waits_for_another_one_holds_no_process(out, photos):
    def give_up(owner: str) -> None:
        assert children() == []
        raise KeyboardInterrupt

    with file_lease.hold(out / ".shardctl", None), pytest.raises(KeyboardInterrupt):
        shardctl.convert(photos, out, workers=2, listener=Listener(waiting=give_up))


def limited(limit: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Run shardctl in a shell that has set a limit of open files: "-n 64" sets both limits, "-Sn
    64" the soft one."""
    shell = ["bash", "-c", f'ulimit {limit} && exec "$@"', "-"]
    return subprocess.run(
        [*shell, *command_line(*words)], capture_output=True, text=True, timeout=60
    )


@pytest.mark.thorough
def test_every_limit_of_open_files_works_or_is_said_with_what_helps(photos, raw_dataset, out):
    """The command opens files between counting them and starting its last worker; each worker takes
    three descriptors of it."""
    for words in (("verify", raw_dataset), ("convert", photos, out)):
        for limit in (24, 30):
            ran = limited(f"-n {limit}", *words)
            assert ran.returncode == 0 or "room for 0;" in ran.stderr, ran.stderr
    convert = ("convert", photos, out, "--overwrite", "--samples-per-shard", 3, "--workers")
    refused = limited("-n 64", *convert, 20)
    said = re.search(
        r"^shardctl: .*enough files for 20 .* use --workers (\d+)", refused.stderr, re.M
    )
    assert refused.returncode == 3
    assert said, refused.stderr
    for limit, workers in (("-n 24", 0), ("-n 64", said[1]), ("-Sn 64", 20)):
        ran = limited(limit, *convert, workers)
        assert (ran.returncode, "Traceback" in ran.stderr) == (0, False), ran.stderr
    assert shardctl.open(out).manifest.shards == 20
    assert limited("-n 64", "verify", out).returncode == 0


def test_automatic_workers_are_fewer_if_files_run_out_after_they_were_counted(monkeypatch):
    monkeypatch.setattr(pool, "usable_cores", lambda: 3)
    # only for the first worker
    monkeypatch.setattr(pool, "allow_open_files", lambda more: len(children()) == 0)
    listening = Listening("auto")
    try:
        answers = listening.run(*[{"do": "who"}] * 4)
    finally:
        listening.pool.close()
    assert len(answers) == 4
    assert len({worker for worker, _, _ in answers}) == 1


def test_a_task_whose_worker_died_is_done_again_if_no_worker_can_be_started_for_it(
    tmp_path, monkeypatch
):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    allowed = iter([True, True, False])
    monkeypatch.setattr(pool, "usable_cores", lambda: 2)
    monkeypatch.setattr(pool, "allow_open_files", lambda more: next(allowed))
    listening = Listening("auto")

    def died(_task: Task, _death: Death) -> Task:
        pipe.write_text("died")  # now the other worker ends its task
        return {"do": "double", "number": 4}

    monkeypatch.setattr(listening, "_died", died)
    try:
        answers = listening.run({"do": "die_with_a_command"}, {"do": "read", "path": str(pipe)})
    finally:
        listening.pool.close()
    assert answers == ["died", 8]


def test_workers_that_cannot_be_started_are_one_sentence(raw_dataset, monkeypatch):
    """For instance because this user may not execute the Python that runs."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(WorkerError, match="/nowhere/python: No such file"):
        shardctl.verify(raw_dataset)


def test_a_run_that_fails_leaves_no_answers_for_the_next_one(three, tmp_path):
    """A worker is still busy when the answer of the other one ends the run."""
    os.mkfifo(tmp_path / "pipe")
    other = [{"do": "read", "path": str(tmp_path / "pipe")}, {"do": "double", "number": 1}]

    def fail(task: Task, message: dict[str, Any]) -> None:
        raise WorkerError("enough")

    with pytest.raises(WorkerError, match="enough"):
        three.pool.run(other, fail, lambda task, death: None)
    assert children() == []
    assert three.run({"do": "double", "number": 4}) == [8]
