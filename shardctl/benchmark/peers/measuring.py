"""`shardctl bench` of shards of other tools: with the reader that training uses for them, in a
process of its own, which tells how large each batch is; and beside shardctl's loader."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from shardctl.benchmark.measure import Listener
from shardctl.benchmark.measure.consumers import find_consumer, without_reading_ahead
from shardctl.benchmark.measure.meters import memory_of_others, residency
from shardctl.benchmark.measure.result import IN_ORDER, BenchResult, ReaderFacts
from shardctl.benchmark.measure.throughput import (
    Batches,
    Memory,
    OwnDataset,
    Subject,
    compare_readers,
    measure,
    summarize,
)
from shardctl.benchmark.options import BenchOptions, Preset
from shardctl.errors import InputError, InstallError, UsageError
from shardctl.format.names import Json
from shardctl.interop.foreign_shards import open_shards
from shardctl.loader.blocks.memory import Batch
from shardctl.making.sampling import convert_some
from shardctl.sources.formats.tfds import FEATURES
from shardctl.system.machine import memory_bytes, usable_cores
from shardctl.system.processes.worker_state import await_end, last_line_of
from shardctl.system.scratch import scratch_folder
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


MOST_COPIED = 2 << 30
"""The most bytes of files that are read where the reader copies them first."""

_READ_BYTES = 8 << 20

TRIED = 2048
"""How many records are converted to measure shardctl beside another reader."""

ITS_SHUFFLE = "as this reader shuffles"
"""The name of a random order that is not shardctl's."""


@dataclass
class PeerShards:
    """Shards of another tool, read by its reader in the Python `python`. Having opened them, it
    says `library` and `how`."""

    reader: PeerReader
    python: str
    files: list[Path]
    notes: tuple[str, ...]
    options: BenchOptions
    scratch: Path
    library: str = ""
    how: str = ""
    reads_ahead: bool = True

    @property
    def facts(self) -> ReaderFacts:
        """What is told of the reader."""
        return ReaderFacts(self.library, self.how, self.python, self.notes)

    def open(self, epochs: int | None, drop_last: bool = False) -> tuple[Batches, float]:
        """Open the shards; the start of Python and its imports are not part of the seconds."""
        options = {
            "files": list(map(str, self.files)),
            "shuffle": bool(self.options.shuffle),
            "decode": self.options.decode,
            "batch_size": self.options.batch_size,
            "processes": self.options.processes or usable_cores(),
            "scratch": tempfile.mkdtemp(dir=self.scratch),
        }
        remote = Remote(self.reader, self.python, options, epochs)
        self.library, self.how, self.reads_ahead = remote.library, remote.how, remote.reads_ahead
        return remote, remote.opening_s

    def order_and_memory(self, batches: Batches) -> tuple[str, Memory]:
        """Return the name of the order, and the memory of the processes that read, without this
        one."""
        assert isinstance(batches, Remote)  # from `open`
        order = ITS_SHUFFLE if self.options.shuffle else IN_ORDER
        return order, memory_of_others(batches.process_ids)

    def read(self) -> None:
        """Read the files once, so that they are in the page cache as the records are that were
        converted."""
        for file in self.files:
            with open(file, "rb", buffering=0) as opened:
                while opened.read(_READ_BYTES):
                    pass

    def transfers_of(self, batches: Batches) -> dict[str, int] | None:
        """Return None: the files are local."""


def bench_shards(
    path: str | Path,
    listener: Listener | None = None,
    python: str = sys.executable,
    beside: bool = False,
    **options: Any,
) -> BenchResult:
    """Measure the rate of batches of shards of another tool, with its reader in the Python
    `python`.

    With `beside`, some records are converted into a scratch folder, and read in turn with
    shardctl's loader. `options` are those of BenchOptions that other readers have. Raises
    UsageError, InputError, InstallError.
    """
    chosen, root, listener = BenchOptions(**options), Path(path), listener or Listener()
    _check(chosen, beside)
    consumer = find_consumer(chosen, _rate_of)
    with scratch_folder() as scratch:
        subject, dataset = _find(root, chosen, python, scratch)
        if chosen.cold and subject.reader.copies:
            raise UsageError(
                "--cold is not for Parquet files, of which a copy in memory is read; leave it out"
            )
        subjects: list[Subject] = [subject]
        tried = None
        if beside:
            listener.phase("converting some")
            tried = convert_some(root, TRIED, scratch)
            subjects.append(OwnDataset(tried[0], replace(chosen, processes=None)))
            if not chosen.cold and dataset["bytes"] < memory_bytes() / 2:
                subject.read()
        page_cache = {"before": residency(subject.files)}
        listener.phase("reading")
        found, *own = measure(subjects, chosen, listener.samples)
        result = summarize(dataset, root, chosen, found, page_cache)
        if consumer is not None:
            listener.phase("feeding")
            fed = consumer.feed(subject, found, listener.samples)
            result = replace(
                result, consumer=fed if subject.reads_ahead else without_reading_ahead(fed)
            )
        if tried is not None:
            _, records, made = tried
            against = compare_readers(made.samples, records, made.bytes, found, own[0])
            result = replace(result, against=against)
        return replace(result, reader=subject.facts)


def rate_today(path: Path, python: str, options: BenchOptions) -> tuple[ReaderFacts, float]:
    """Return the reader of the shards at a path and its rate in samples/s. Raises UsageError,
    InputError, InstallError."""
    with scratch_folder() as scratch:
        subject, _ = _find(path, options, python, scratch)
        (found,) = measure([subject], options, lambda samples: None)
        return subject.facts, found.rate


def _check(options: BenchOptions, beside: bool) -> None:
    """Raise UsageError for options that the readers of others do not have."""
    options.check()
    if options.calls_function:
        raise UsageError(
            "your own function takes batches of shardctl; for shards of others give --consumer-rate"
        )
    refused = {
        "--split": options.split,
        "--baseline": options.baseline,
        "--sweep": options.sweep,
        "--order": isinstance(options.shuffle, str),
        "--threads": options.threads != "auto" and not beside,
    }
    for name, given in refused.items():
        if given:
            raise UsageError(
                f"{name} is for datasets of shardctl, not for shards of another tool; leave it out"
            )


def _rate_of(preset: Preset) -> tuple[float, tuple[str, ...]]:
    """Return the rate of a preset: a record counts as an image. Raises UsageError for tokens, which
    are not counted here."""
    if preset.unit != "images":
        raise UsageError(
            f"{preset.name} takes tokens, not counted in shards of others; give a --consumer-rate"
        )
    return preset.rate, ()


def _refuse_unreadable(files: Sequence[str]) -> None:
    """Raise InputError for a file that may not be read: of readers of others, not all name it."""
    refused = next((file for file in files if not os.access(file, os.R_OK)), None)
    if refused is not None:
        raise InputError(
            f"{printable(refused)}: cannot be read (no permission); allow it, or leave the file out"
        )


def _find(root: Path, options: BenchOptions, python: str, scratch: Path) -> tuple[PeerShards, Json]:
    """Return the shards with their reader, and what is measured of them."""
    with open_shards(root, "auto") as shards:
        rows = [
            row
            for row in shards.listing.table.select(["path", "root", "error"]).to_pylist()
            if not row["error"]
        ]
        files = [str(Path(shards.listing.opened(row)).absolute()) for row in rows]
        _refuse_unreadable(files)
        sizes = [Path(file).stat().st_size for file in files]
        reader = reader_of(shards.formats, files, str(root))
        count = (
            len(files)
            if not reader.copies
            else max(1, int(np.searchsorted(np.cumsum(sizes), MOST_COPIED, "right")))
        )
        records = int(shards.units.records[shards.units.file < count].sum())
    notes: tuple[str, ...] = ()
    if count < len(files):
        notes = (
            f"only the first {count:,} of {len(files):,} files were read, of which this reader "
            "makes copies",
        )
    dataset = {
        "path": str(root),
        "fingerprint": None,
        "samples": records,
        "bytes": sum(sizes[:count]),
        "recipe": None,
    }
    return PeerShards(
        reader, python, list(map(Path, files[:count])), notes, options, scratch
    ), dataset
