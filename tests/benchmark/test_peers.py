"""Shards of other tools are measured with their own readers, in processes that end with the
measurement."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
from in_this_process import convert
from tars import write_numbered_tar

import shardctl
from shardctl.benchmark import advice
from shardctl.benchmark.page import bench_page
from shardctl.benchmark.peers import remote
from shardctl.benchmark.peers.measuring import bench_shards
from shardctl.errors import InputError, InstallError
from shardctl.making.sampling import convert_some
from shardctl.system.scratch import scratch_folder

ROOT = Path(__file__).parents[2]
INTEROP = Path(os.environ.get("SHARDCTL_INTEROP", ROOT / ".interop"))
QUICK: dict[str, Any] = {"runs": 2, "seconds": 0.2, "batch_size": 8}

OPERATORS_OF_TORCHVISION = """
import torch
library = torch.library.Library("torchvision", "DEF")
for operator in ("nms", "qnms"):  # torchvision from PyPI lacks them beside a torch without CUDA
    library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardctl.benchmark.measure.throughput.WARM_UP_SECONDS", 0.05)
    monkeypatch.setattr(advice, "ROUND_SECONDS", 0.05)
    monkeypatch.setattr(advice, "PROOF_SECONDS", 0.3)


@pytest.fixture(scope="module")
def dataset(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("peers") / "dataset"
    convert(
        photos,
        root,
        recipe={
            "store": "png",
            "transform": [{"name": "resize", "size": 24}, {"name": "crop", "size": 24}],
        },
    )
    return root


def exported(dataset: Path, to: str) -> Path:
    out = dataset.parent / to
    if not out.exists():
        shardctl.export(dataset, out, to, workers=0, on_loss="json")
    return out


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
            if of_parent and remote.PROGRAM.name in (stat.parent / "cmdline").read_text():
                found.append(int(stat.parent.name))
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("to", ["webdataset", "parquet"])
def test_shards_of_others_are_read_with_their_reader_and_shardctl_in_turn(to, dataset):
    result = bench_shards(exported(dataset, to), beside=True, **QUICK)
    assert result.reader is not None
    assert result.reader.library.startswith({"webdataset": "webdataset", "parquet": "datasets"}[to])
    assert (len(result.runs), result.dataset["samples"]) == (2, 60)
    pixels = 24 * 24 * 3
    assert result.mb_per_s / result.samples_per_s * 1e6 == pytest.approx(pixels, rel=0.2), (
        "images are handed over as pixels"
    )
    against = result.against
    assert against is not None
    assert (against.samples, against.records, len(against.ratios)) == (60, 60, 2)
    assert min(against.ratios) <= against.ratio <= max(against.ratios)
    page = bench_page(result, "shardctl bench")
    assert all(
        text in page
        for text in (
            "The same samples with shardctl",
            f"{against.ratio:,.2f} times",
            against.reading,
        )
    )
    assert processes() == []


@pytest.mark.thorough
def test_encoded_bytes_are_handed_over_where_that_is_asked_for(dataset):
    result = bench_shards(exported(dataset, "webdataset"), decode=False, shuffle=False, **QUICK)
    assert result.mb_per_s < result.samples_per_s * 24 * 24 * 3 / 1e6
    assert result.shuffle == "in-order"


@pytest.mark.thorough
def test_epochs_are_whole(dataset):
    result = bench_shards(exported(dataset, "parquet"), runs=2, epochs=2, batch_size=8)
    assert (result.samples, result.batches, result.epochs) == (240, 32, 4)


@pytest.mark.thorough
def test_a_cold_measurement_reads_each_epoch_in_a_new_process(dataset):
    result = bench_shards(exported(dataset, "webdataset"), cold=True, runs=2, batch_size=8)
    assert (result.samples, len(result.by_run["first_batch_s"])) == (120, 2)


@pytest.mark.thorough
def test_a_fast_gpu_would_wait_for_the_reader_of_others(cli, dataset):
    options = ("--runs", 1, "--seconds", 0.3, "--batch-size", 8)
    starved = cli("bench", exported(dataset, "webdataset"), "--consumer-rate", 1e8, *options)
    assert (starved.code, "STARVES" in starved.out, "time of the threads" in starved.out) == (
        1,
        True,
        False,
    )
    fed = cli("bench", exported(dataset, "webdataset"), "--consumer-rate", 20, *options, "--json")
    assert (fed.code, fed.json["verdict"]) == (0, "keeps-up")
    assert fed.json["reader"]["library"].startswith("webdataset")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--split", "train"], "--split is for datasets of shardctl"),
        (["--sweep"], "--sweep is for datasets of shardctl"),
        (["--threads", "2"], "--threads is for datasets of shardctl"),
        (["--consumer", "mpt-7b-h100"], "takes tokens, not counted"),
        (["--python", "/no/python"], "/no/python: cannot be started"),
    ],
)
def test_what_other_readers_do_not_have_is_refused(cli, dataset, options, message, monkeypatch):
    ran = cli("bench", exported(dataset, "webdataset"), *options)
    assert ran.code in (2, 3)
    assert message in ran.err


def test_options_for_shards_of_others_are_refused_for_a_dataset(cli, dataset):
    ran = cli("bench", dataset, "--against")
    assert (ran.code, "--against is for shards of other tools" in ran.err) == (2, True)
    gone = cli("bench", dataset / "gone.tar", "--against")
    assert (gone.code, "gone.tar: no such" in gone.err) == (3, True)


def test_files_without_a_reader_are_named(cli, tmp_path):
    import numpy as np

    np.save(tmp_path / "a.npy", np.arange(6))
    ran = cli("bench", tmp_path / "a.npy")
    assert (ran.code, "bench has no reader for files of npy" in ran.err) == (2, True)


def test_packages_that_are_missing_are_named_with_what_helps(dataset, python_with):
    python = python_with("import sys; sys.modules['webdataset'] = None")
    with pytest.raises(
        InstallError,
        match=r"pip install webdataset torch, or name another Python with --python",
    ):
        bench_shards(exported(dataset, "webdataset"), python=str(python), **QUICK)
    assert processes() == []


def test_a_reader_that_dies_is_told_with_its_last_words(dataset, python_with):
    python = python_with("import sys; sys.exit('no memory left')")
    with pytest.raises(
        InstallError,
        match=r"is not a Python that runs the reader \(its process ended with code 1: no memory "
        r"left\)",
    ):
        bench_shards(exported(dataset, "webdataset"), python=str(python), **QUICK)


@pytest.mark.parametrize(
    ("program", "said"), [("/bin/true", "ended with code 0"), ("/bin/cat", "it answers")]
)
def test_a_program_that_is_no_python_is_told(program, said, dataset):
    with pytest.raises(
        InstallError, match=f"{program}: is not a Python that runs the reader .*{said}"
    ):
        bench_shards(exported(dataset, "webdataset"), python=program, **QUICK)
    assert processes() == []


def tars_of_others(dataset: Path, folder: Path) -> Path:
    """Tars without a shardctl.json beside them, as anybody has them."""
    folder.mkdir()
    for tar in exported(dataset, "webdataset").glob("*.tar"):
        shutil.copy(tar, folder)
    return folder


@pytest.mark.thorough
def test_records_are_converted_as_convert_does_by_itself(dataset, tmp_path):
    shards = tars_of_others(dataset, tmp_path / "tars")
    convert(shards, tmp_path / "whole", labels="none")
    with scratch_folder() as scratch:
        tried = shardctl.open(convert_some(shards, 30, scratch)[0])
        whole = shardctl.open(tmp_path / "whole")
        assert (tried.manifest.kind, tried.manifest.recipe["compression"]) == (
            "image",
            whole.manifest.recipe["compression"],
        )
        assert tried[0]["image"].shape == (24, 24, 3)
        assert set(tried.schema.names) - {"__key__"} == set(whole.schema.names)


@pytest.mark.thorough
def test_batches_that_are_larger_than_an_epoch_are_measured(dataset, tmp_path):
    result = bench_shards(tars_of_others(dataset, tmp_path / "tars"), runs=1, seconds=0.2)
    assert result.samples > 0


def test_pickles_in_shards_are_not_run(tmp_path):
    evil = tmp_path / "evil"
    payload = b"cos\nsystem\n(S'touch %b'\ntR." % str(evil).encode()
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(20):
            for field, data in (("txt", b"text"), ("pyd", payload), ("pickle", payload)):
                info = tarfile.TarInfo(f"{number:04d}.{field}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    assert bench_shards(tmp_path / "a.tar", **QUICK).samples > 0
    assert not evil.exists()


@pytest.mark.thorough
def test_damaged_images_and_bytes_that_are_none_do_not_stop_it(dataset, tmp_path):
    shards = write_numbered_tar(tmp_path / "a.tar", 0)
    with tarfile.open(shards, "w") as tar:
        for number, data in enumerate(
            [b"\xff\xd8\xff" + bytes(50), b"BMW is a car", b"RIFF1234WAVEfmt "] * 5
        ):
            info = tarfile.TarInfo(f"{number:04d}.bin")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    assert bench_shards(shards, **QUICK).samples > 0


@pytest.mark.thorough
def test_shards_that_their_reader_cannot_read_are_an_error(tmp_path, python_with):
    shards = write_numbered_tar(tmp_path / "a.tar", 20)
    python = python_with("import webdataset; webdataset.WebDataset = lambda *a, **o: 1 / 0")
    with pytest.raises(
        InputError, match="webdataset cannot read these shards: ZeroDivisionError: division by zero"
    ):
        bench_shards(shards, python=str(python), **QUICK)
    assert processes() == []


@pytest.mark.thorough
def test_advice_says_how_fast_the_shards_are_read_today(cli, dataset, python_with):
    options = ("--consumer-rate", 50, "--inputs", 20, "--batch-size", 8, "--workers", 0)
    told = cli("advise", exported(dataset, "webdataset"), *options)
    assert (
        told.code,
        "as they are:" in told.out,
        "by webdataset" in told.out,
    ) == (0, True, True)
    python = python_with("import sys; sys.modules['webdataset'] = None")
    told = cli("advise", exported(dataset, "webdataset"), *options, "--python", python, "--json")
    assert (told.code, "pip install webdataset torch" in told.json["today"]["why_not"]) == (0, True)


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
    assert result.reader is not None
    assert result.reader.library.startswith(library)
    assert result.samples > 0
    assert processes() == []


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_measurement_that_is_stopped_leaves_no_process(number, dataset):
    command = [
        sys.executable,
        "-m",
        "shardctl",
        "bench",
        exported(dataset, "webdataset"),
        "--against",
        "--runs",
        "100",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as bench:
        while not (readers := processes(bench.pid)):
            assert bench.poll() is None
        bench.send_signal(number)
    ends = time.monotonic() + 30
    while any(Path(f"/proc/{reader}").exists() for reader in readers):
        assert time.monotonic() < ends
