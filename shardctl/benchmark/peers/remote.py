"""The reader of another tool for shards of it, in a process of its own, which tells how large each batch
is."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shardctl.errors import InputError, InstallError, UsageError
from shardctl.format.names import Json
from shardctl.loader.blocks.memory import Batch
from shardctl.sources.formats.tfds import FEATURES
from shardctl.system.processes.worker_state import await_end, last_line_of
from shardctl.system.text import printable


@dataclass(frozen=True)
class PeerReader:
    """A reader of another tool: the module of `programs` that drives it, and the packages that pip
    installs it from."""

    program: str
    packages: str
    copies: bool = False
    """Whether it makes a copy of the shards before it reads them."""


READERS = {
    "webdataset": PeerReader("read_webdataset", "webdataset torch"),
    "tfrecord": PeerReader("read_tfrecord", "tensorflow"),
    "tfds": PeerReader("read_tfds", "tensorflow tensorflow-datasets"),
    "mds": PeerReader("read_mds", "mosaicml-streaming"),
    "parquet": PeerReader("read_huggingface", "datasets torch", copies=True),
    "arrow": PeerReader("read_huggingface", "datasets torch"),
}
"""The reader for each format of FORMAT_NAMES, and for folders of TFDS."""


def reader_of(formats: dict[str, int], files: list[str], shown: str) -> PeerReader:
    """Return the reader for files of these formats. Raises UsageError where there is none, or more
    than one is needed."""
    known = ", ".join(READERS)
    if len(formats) != 1:
        raise UsageError(
            f"{printable(shown)} has files of several formats ({', '.join(formats)}); measure one "
            "at a time"
        )
    name = next(iter(formats))
    if name == "tfrecord" and (Path(files[0]).parent / FEATURES).exists():
        name = "tfds"
        if len({Path(file).parent for file in files}) > 1:
            raise UsageError(
                f"{printable(shown)} has several folders of TFDS; measure one at a time"
            )
    if name not in READERS:
        raise UsageError(
            f"{printable(shown)}: bench has no reader for files of {name} (it has those for "
            f"{known}); convert them, and measure that"
        )
    zstd = next(
        (
            file
            for file in files
            if name == "webdataset" and file.endswith((".zst", ".zstd", ".tzst"))
        ),
        None,
    )
    if zstd is not None:
        raise UsageError(
            f"{printable(zstd)}: webdataset does not read tars compressed with zstd; shardctl "
            "does: convert them"
        )
    return READERS[name]


PROGRAM = Path(__file__).parent / "programs" / "serve.py"

PATIENCE = 300.0
"""Seconds that a reader may take for one answer: its first includes the import of TensorFlow, or a
copy of Parquet files."""

CANNOT_READ = " cannot read these shards: "


@dataclass(frozen=True)
class PeerStats:
    """What is known of a reader of others: the processor seconds of its processes. It has no
    stages."""

    processes_cpu_s: float
    stages: dict[str, float] = field(default_factory=dict)
    wait_put_s: float = 0.0
    making_s: float = 0.0


@dataclass(frozen=True)
class _Values:
    """The values of a batch, which are in the other process."""

    samples: int
    nbytes: int

    def __len__(self) -> int:
        return self.samples


class Remote:
    """Batches of a reader in the Python `python`. `epochs` is how many an iteration has, None for
    no end.

    Raises InstallError where the packages are not installed there, InputError where the reader
    cannot read the shards.
    """

    def __init__(self, reader: PeerReader, python: str, options: Json, epochs: int | None) -> None:
        self._reader, self._python, self._epochs = reader, python, epochs
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        try:
            self._process = subprocess.Popen(
                [python, str(PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                start_new_session=True,  # Ctrl-C is for this process, which ends the other
                # TensorFlow and others leave files there
                env={**os.environ, "TMPDIR": options["scratch"]},
            )
        except OSError as error:
            self._said.close()
            raise InstallError(
                f"{printable(python)}: cannot be started ({error.strerror}); name a Python"
            ) from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._commands, self._answers = self._process.stdin, self._process.stdout
        self._read: int | None = None  # samples of the epoch that was begun
        try:
            self._send(
                json.dumps({**options, "program": reader.program, "endless": epochs is None})
            )
            try:
                self._answer()
            except InputError as error:  # it has not looked at the shards yet
                why = str(error).partition(CANNOT_READ)[2]
                raise InstallError(
                    f"{printable(python)}: is not a Python that runs the reader ({why}); name "
                    "another"
                ) from None
            began = time.perf_counter()
            opened = self._ask("open")
        except BaseException:
            self.close()
            raise
        self.opening_s = time.perf_counter() - began
        """How long it took to open the shards, without the start of Python and its imports."""
        self.library, self.how = opened["library"], opened["how"]
        self.threads, self.reads_ahead = int(opened["parallel"]), opened["ahead"]

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches: those of the epochs, or without an end from where the last iteration was
        stopped.

        Its processes are paused when the iteration stops, so that they make nothing ahead while
        another reader is measured.
        """
        self._signal(signal.SIGCONT)
        try:
            epoch = 0
            while self._epochs is None or epoch < self._epochs:
                if self._read is None or self._epochs is not None:
                    self._ask("begin")
                    self._read = 0
                while (answer := self._ask("next"))["samples"]:
                    self._read += answer["samples"]
                    # only its size counts
                    yield {"values": _Values(answer["samples"], answer["bytes"])}
                if not self._read:
                    raise InputError(f"{self.library} found no sample in these shards")
                self._read, epoch = None, epoch + 1
        finally:
            self._signal(signal.SIGSTOP)

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: an iteration of epochs begins with a new one anyhow, and one without an end
        goes on."""

    def stats(self) -> PeerStats:
        """Return the processor time of its processes so far."""
        return PeerStats(sum(_processes_of(self._process.pid).values()))

    @property
    def process_ids(self) -> list[int]:
        """The processes that read."""
        return list(_processes_of(self._process.pid))

    def close(self) -> None:
        """End its processes."""
        self._signal(signal.SIGCONT)
        with contextlib.suppress(OSError):
            self._commands.close()
        await_end(self._process)
        self._signal(signal.SIGKILL)  # its processes that are left
        self._process.wait()
        self._answers.close()
        self._said.close()

    def _signal(self, number: int) -> None:
        """Send a signal to all of its processes; those that tidy up behind the others are never
        paused."""
        if number != signal.SIGSTOP:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            return
        for process in self.process_ids:
            with contextlib.suppress(OSError):
                if b"resource_tracker" not in Path(f"/proc/{process}/cmdline").read_bytes():
                    os.kill(process, number)

    def _ask(self, command: str) -> Json:
        self._send(command)
        return self._answer()

    def _send(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # there is no answer then
            self._commands.write(line.encode() + b"\n")
            self._commands.flush()

    def _answer(self) -> Json:
        there, _, _ = select.select([self._answers], [], [], PATIENCE)
        line = self._answers.readline() if there else b""
        try:
            answer: Json = (
                dict(json.loads(line))
                if line.endswith(b"\n")
                else {"error": self._why(bool(there))}
            )
        except (ValueError, TypeError):
            answer = {"error": f"it answers {line[:60]!r}"}
        if "missing" in answer:
            raise InstallError(
                f"the reader of these shards needs packages that {printable(self._python)} "
                f"cannot import ({printable(answer['missing'])}): pip install "
                f"{self._reader.packages}, or name another Python with --python"
            )
        if "error" in answer:
            raise InputError(
                f"{self._reader.packages.split()[0]}{CANNOT_READ}{printable(answer['error'])}"
            )
        return answer

    def _why(self, ended: bool) -> str:
        """Return why there is no answer: what the process said last."""
        if not ended:
            return f"no answer for {PATIENCE:g} s"
        code, last = self._process.wait(), last_line_of(self._said)
        return f"its process ended with code {code}{f': {last}' if last else ''}"


def _processes_of(session: int) -> dict[int, float]:
    """Return the processes of a session and the processor seconds of each (proc_pid_stat(5)); none
    where that is not known."""
    found = {}
    ticks = os.sysconf("SC_CLK_TCK")
    for name in os.listdir("/proc") if Path("/proc").is_dir() else []:
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The name of the program, in brackets, may have spaces.
                values = (
                    Path(f"/proc/{name}/stat")
                    .read_text(encoding="utf-8", errors="replace")
                    .rpartition(")")[2]
                    .split()
                )
                if int(values[3]) == session:
                    found[int(name)] = (int(values[11]) + int(values[12])) / ticks
    return found
