"""Shards of other tools are measured with their own readers, in processes that end with the
measurement."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from in_this_process import command_line, convert
from quick_measurements import quick  # noqa: F401 (a fixture)
from tars import write_tar

import shardctl
from shardctl.benchmark.page import bench_page
from shardctl.benchmark.peers import measuring
from shardctl.benchmark.peers.measuring import bench_shards
from shardctl.errors import InputError, InstallError
from shardctl.making.sampling import convert_some
from shardctl.system.scratch import scratch_folder

ROOT = Path(__file__).parents[2]
INTEROP = Path(os.environ.get("SHARDCTL_INTEROP", ROOT / ".interop"))
QUICK: dict[str, Any] = {"runs": 2, "seconds": 0.2, "batch_size": 8}
WITHOUT_WEBDATASET = "import sys; sys.modules['webdataset'] = None"


OPERATORS_OF_TORCHVISION = """
import torch
library = torch.library.Library("torchvision", "DEF")
for operator in ("nms", "qnms"):  # torchvision from PyPI lacks them beside a torch without CUDA
    library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


@pytest.fixture(scope="module")
def dataset(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("peers") / "dataset"
    convert(photos, root, resize="24x24", store="png")
    return root


def exported(dataset: Path, to: str = "webdataset") -> Path:
    out = dataset.parent / to
    if not out.exists():
        shardctl.export(dataset, out, to, workers=0, on_loss="json")
    return out


def write_members(path: Path, members: list[dict[str, bytes]]) -> Path:
    """Write a tar of samples with these fields."""
    return write_tar(path, {f"{number:04d}": fields for number, fields in enumerate(members)})


@pytest.fixture
def python_with(tmp_path: Path) -> Any:
    """A Python that runs some code before the program: a wrapper, as people have for their
    environments."""

    def make(code: str, python: Path = Path(sys.executable)) -> Path:
        (tmp_path / "first.py").write_text(
            f"{code}\nimport runpy, sys\nrunpy.run_path(sys.argv[1], run_name='__main__')\n"
        )
        wrapper = tmp_path / "python"
        wrapper.write_text(f'#!/bin/sh\nexec {python} {tmp_path / "first.py"} "$@"\n')
        wrapper.chmod(0o755)
        return wrapper

    return make


def processes(parent: int | None = None) -> list[int]:
    """The readers that a process, this one by default, has started and not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            of_parent = int(stat.read_text().rpartition(")")[2].split()[1]) == (
                parent or os.getpid()
            )
            if of_parent and measuring.PROGRAM.name in (stat.parent / "cmdline").read_text():
                found.append(int(stat.parent.name))
    return found


@pytest.mark.thorough
@pytest.mark.parametrize(("to", "library"), [("webdataset", "webdataset"), ("parquet", "datasets")])
def test_shards_of_others_are_read_with_their_reader_and_shardctl_in_turn(to, library, dataset):
    result = bench_shards(exported(dataset, to), beside=True, **QUICK)
    assert result.reader.library.startswith(library)
    assert (len(result.runs), result.dataset["samples"]) == (2, 60)
    # images are handed over as pixels
    size = result.mb_per_s / result.samples_per_s * 1e6
    assert size == pytest.approx(24 * 24 * 3, rel=0.2)
    against = result.against
    assert (against.samples, against.records, len(against.ratios)) == (60, 60, 2)
    assert min(against.ratios) <= against.ratio <= max(against.ratios)
    page = bench_page(result, "shardctl bench")
    for text in ("against shardctl", f"{against.ratio:,.2f} times", against.reading):
        assert text in page
    assert processes() == []


@pytest.mark.thorough
def test_encoded_bytes_whole_epochs_and_cold_reading_where_they_are_asked_for(dataset):
    result = bench_shards(exported(dataset), decode=False, shuffle=False, **QUICK)
    assert result.mb_per_s < result.samples_per_s * 24 * 24 * 3 / 1e6
    assert result.shuffle == "in-order"
    result = bench_shards(exported(dataset, "parquet"), runs=2, epochs=2, batch_size=8)
    assert (result.samples, result.batches, result.epochs) == (240, 32, 4)
    # each epoch in a new process
    result = bench_shards(exported(dataset), cold=True, runs=2, batch_size=8)
    assert (result.samples, len(result.by_run["first_batch_s"])) == (120, 2)


@pytest.mark.thorough
def test_a_fast_gpu_would_wait_for_the_reader_of_others(cli, dataset):
    options = "--runs 1 --seconds 0.3 --batch-size 8 --consumer-rate".split()
    starved = cli("bench", exported(dataset), *options, 1e8)
    assert (starved.code, "STARVES" in starved.out) == (1, True)
    assert "time of the threads" not in starved.out
    fed = cli("bench", exported(dataset), *options, 20, "--json")
    assert (fed.code, fed.json["verdict"]) == (0, "keeps-up")
    assert fed.json["reader"]["library"].startswith("webdataset")


def test_what_other_readers_do_not_have_is_refused(cli, dataset, tmp_path):
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01")
    others = exported(dataset)
    for words, code, message in (
        ((others, "--split", "train"), 2, "--split is for datasets of shardctl"),
        ((others, "--sweep"), 2, "--sweep is for datasets of shardctl"),
        ((others, "--threads", "2"), 2, "--threads is for datasets of shardctl"),
        ((others, "--consumer", "mpt-7b-h100"), 2, "takes tokens, not counted"),
        ((others, "--python", "/no/python"), 3, "/no/python: cannot be started"),
        ((dataset, "--against"), 2, "--against is for shards of other tools"),
        ((dataset / "gone.tar", "--against"), 3, "gone.tar: no such"),
        ((tmp_path / "a.npy",), 2, "no reader for files of npy"),
    ):
        ran = cli("bench", *words)
        assert (ran.code, message in ran.err) == (code, True), ran.err


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("/bin/true", "ended with code 0"),
        ("/bin/cat", "it answers"),
        (WITHOUT_WEBDATASET, r"pip install webdataset torch, .*--python"),
        ("import sys; sys.exit('no memory left')", "code 1: no memory left"),
    ],
)
def test_a_python_that_cannot_run_the_reader_is_told_with_what_helps(
    program, said, dataset, python_with
):
    python = program if program.startswith("/") else str(python_with(program))
    with pytest.raises(InstallError, match=said):
        bench_shards(exported(dataset), python=python, **QUICK)
    assert processes() == []


@pytest.mark.thorough
def test_records_are_converted_as_convert_does_by_itself(dataset, tmp_path):
    """Tars without a shardctl.json beside them, as anybody has them."""
    shards = tmp_path / "tars"
    shutil.copytree(exported(dataset), shards, ignore=shutil.ignore_patterns("*.json"))
    convert(shards, tmp_path / "whole", labels="none")
    with scratch_folder() as scratch:
        tried = shardctl.open(convert_some(shards, 30, scratch)[0])
        whole = shardctl.open(tmp_path / "whole")
        compressions = {each.manifest.recipe["compression"] for each in (tried, whole)}
        assert (tried.manifest.kind, len(compressions)) == ("image", 1)
        assert tried[0]["image"].shape == (24, 24, 3)
        assert set(tried.schema.names) - {"__key__"} == set(whole.schema.names)
    # a batch is larger than an epoch
    assert bench_shards(shards, runs=1, seconds=0.2).samples > 0


def test_pickles_in_shards_are_not_run(tmp_path):
    evil = tmp_path / "evil"
    payload = b"cos\nsystem\n(S'touch %b'\ntR." % str(evil).encode()
    fields = {"txt": b"text", "pyd": payload, "pickle": payload}
    assert bench_shards(write_members(tmp_path / "a.tar", [fields] * 20), **QUICK).samples > 0
    assert not evil.exists()


@pytest.mark.thorough
def test_damaged_images_and_bytes_that_are_none_do_not_stop_it(tmp_path):
    members = (b"\xff\xd8\xff" + bytes(50), b"BMW is a car", b"RIFF1234WAVEfmt ")
    shards = write_members(tmp_path / "a.tar", [{"bin": data} for data in members * 5])
    assert bench_shards(shards, **QUICK).samples > 0


@pytest.mark.thorough
def test_shards_that_their_reader_cannot_read_are_an_error(dataset, python_with):
    python = python_with("import webdataset; webdataset.WebDataset = lambda *a, **o: 1 / 0")
    with pytest.raises(InputError, match="cannot read these shards: ZeroDivisionError"):
        bench_shards(exported(dataset), python=str(python), **QUICK)
    assert processes() == []


@pytest.mark.thorough
def test_advice_says_how_fast_the_shards_are_read_today(cli, dataset, python_with):
    options = "--consumer-rate 50 --inputs 20 --batch-size 8 --workers 0".split()
    told = cli("advise", exported(dataset), *options)
    assert told.code == 0
    assert all(said in told.out for said in ("as they are:", "by webdataset"))
    python = python_with(WITHOUT_WEBDATASET)
    told = cli("advise", exported(dataset), *options, "--python", python, "--json")
    assert (told.code, "pip install webdataset torch" in told.json["today"]["why_not"]) == (0, True)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("to", "environment", "library"),
    [
        ("tfrecord", "tensorflow", "tensorflow 2"),
        ("tfds", "tensorflow", "tensorflow_datasets 4"),
        ("mds", "torch", "mosaicml-streaming 0"),
        ("webdataset", "torch", "webdataset 1"),
    ],
)
def test_the_readers_of_training_environments(to, environment, library, dataset, python_with):
    if not (INTEROP / environment / ".done").exists():
        pytest.skip(f"no environment {environment}; `make interop` makes it")
    code = OPERATORS_OF_TORCHVISION if to == "mds" else ""
    python = python_with(code, INTEROP / environment / "bin" / "python")
    result = bench_shards(exported(dataset, to), python=str(python), beside=True, **QUICK)
    assert result.reader.library.startswith(library)
    assert result.samples > 0
    assert processes() == []


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_measurement_that_is_stopped_leaves_no_process(number, dataset):
    command = command_line("bench", exported(dataset), "--against", "--runs", 100)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as bench:
        while not (readers := processes(bench.pid)):
            assert bench.poll() is None
        bench.send_signal(number)
    ends = time.monotonic() + 30
    while any(Path(f"/proc/{reader}").exists() for reader in readers):
        assert time.monotonic() < ends
