"""Every command as a user calls it: output, JSON, exit codes."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dataset_facts import sums
from dataset_files import shard_in
from in_this_process import command_line
from pyarrow import parquet

import shardctl

FINDING_KEYS = {"severity", "shard", "block", "row", "key", "kind", "message", "source"}


def run_shardctl(arguments: Iterable[object], **streams: Any) -> subprocess.CompletedProcess[str]:
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.run(command_line(*arguments), text=True, timeout=60, **(piped | streams))


def test_the_whole_way(cli, tmp_path, out):
    assert cli("demo", tmp_path / "demo", "--images", 30, "--texts", 10).code == 0
    recipe = "--resize 32 --crop 24x16 --store raw --workers 1".split()
    convert = ("convert", tmp_path / "demo" / "photos", out, *recipe)
    made = cli(*convert)
    assert made.code == 0
    assert "30 samples in 3 shards" in made.out
    assert "6 classes from the folder" in made.err
    assert "is whole (level full): 3 shards, 30 samples" in cli("verify", out).out
    assert "raw image, 16x24x3" in cli("inspect", out).out
    assert "samples/s" in cli("bench", out, "--epochs", 1).out
    assert "is up to date" in cli(*convert).out


def test_verify_says_what_is_wrong_and_exits_with_1(cli, dataset):
    (shard_in(dataset, "train-00001")).unlink()
    found = cli("verify", dataset)
    assert found.code == 1
    assert "error: train-00001: missing-shard" in found.out
    assert "is DAMAGED" in found.out
    found = cli("verify", dataset, "--json", "--level", "quick")
    assert found.code == 1
    assert found.json["ok"] is False
    assert found.json["findings"][0].keys() == FINDING_KEYS


def test_a_warning_does_not_make_a_dataset_damaged_and_is_called_a_warning(cli, dataset):
    (dataset / "notes.txt").write_text("mine")
    checked = cli("verify", dataset)
    assert checked.code == 0
    assert "warning: dataset: extra-file: notes.txt is not part of the dataset" in checked.out
    assert checked.out.endswith("60 samples; 1 warning\n")


def test_repair_says_what_it_mended_and_what_is_lost(cli, photos, tmp_path, out):
    shutil.copytree(photos, tmp_path / "in")
    assert cli("convert", tmp_path / "in", out, "--workers", 0).code == 0
    (shard_in(out, "train-00001")).unlink()
    mended = cli("repair", out)
    assert (mended.code, mended.out.splitlines()[0]) == (0, "repaired: train-00001")
    assert "is whole again: 1 file repaired" in mended.out
    assert "is whole; nothing was done" in cli("repair", out).out
    (shard_in(out, "train-00001")).unlink()
    shutil.rmtree(tmp_path / "in")
    failed = cli("repair", out, "--workers", 0)
    assert failed.code == 1
    assert "lost: key " in failed.out
    assert "not repaired: train-00001: 9 of its samples cannot be made again" in failed.out
    assert cli("repair", out, "--json", "--workers", 0).json["status"] == "damaged"
    dropped = cli("repair", out, "--drop-lost", "--workers", 0)
    assert dropped.code == 0
    assert "is whole, without 9 lost samples" in dropped.out
    assert cli("verify", out).code == 0


def test_a_recipe_file_and_options_join(cli, photos, tmp_path, out):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('store = "png"\nseed = 3\n[[transform]]\nname = "resize"\nsize = "8x6"\n')
    options = "--store webp:70 --workers 0".split()
    assert cli("convert", photos, out, "--recipe", recipe, *options).code == 0
    made = cli("inspect", out, "--json").json["recipe"]
    assert (made["store"], made["seed"], len(made["transform"])) == ("webp:70", 3, 1)


@pytest.mark.thorough
def test_a_function_in_the_current_folder_is_found(photos, tmp_path):
    (tmp_path / "mine.py").write_text(
        "def mark(sample):\n    sample['mark'] = 7\n    return sample\n"
    )
    program = Path(sys.executable).with_name("shardctl")
    options = "out --transform mine:mark --workers 1".split()
    subprocess.run([program, "convert", photos, *options], cwd=tmp_path, check=True)
    assert {sample["mark"] for sample in shardctl.open(tmp_path / "out")} == {7}


def test_version_names_the_backend_and_the_formats(cli):
    shown = cli("--version").out
    assert shown.startswith("shardctl ")
    assert "imaging: Pillow" in shown
    assert "reads: JPEG, PNG" in shown


def test_help_is_a_page_and_needs_no_arrow():
    """Starting is quick because the heavy packages are not imported."""
    code = (
        "import sys; from shardctl.cli import run; run(['convert', '--help']); "
        "sys.exit('pyarrow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "SRC... DST" in done.stdout


def imported_by(*arguments: object) -> set[str]:
    """The modules that a conversion imports, of which numpy.ma and the like take 5 to 40 ms."""
    command = [sys.executable, "-X", "importtime", "-m", "shardctl", "convert"]
    ran = subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    lines = [line for line in ran.stderr.splitlines() if line.startswith("import time:")]
    found = {line.rpartition("|")[2].strip() for line in lines}
    assert {"pyarrow", "shardctl.making.convert"} <= found
    assert found.isdisjoint({"pyarrow.compute", "pyarrow.csv", "numpy.ma"})
    return found


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_conversion_of_photos_imports_no_large_module_that_it_does_not_need(
    photos, tmp_path, workers
):
    found = imported_by(photos, tmp_path / "out", "--resize", "8x8", "--workers", workers)
    # else only workers import it
    assert ("shardctl.making.shards.task" in found) == (workers == 0)


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(("name", "workers"), [("a.jsonl", 0), ("a.jsonl", 2), ("a.parquet", 2)])
def test_a_conversion_of_records_imports_no_large_module_that_it_does_not_need(
    tmp_path, name, workers
):
    records = [{"id": number, "text": f"text {number}"} for number in range(1000)]
    if name == "a.parquet":
        parquet.write_table(pa.Table.from_pylist(records), tmp_path / name, row_group_size=100)
    else:
        (tmp_path / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    found = imported_by(tmp_path / name, tmp_path / "out", "--workers", workers)
    assert "shardctl.sources.csv_numbers" not in found


def test_a_name_that_no_file_system_takes_is_answered_in_a_sentence(cli, photos):
    for command in (("convert", photos), ("verify",)):
        ran = cli(*command, "a" * 300)
        assert (ran.code, "File name too long" in ran.err) == (3, True)


def test_output_into_a_closed_pipe_is_no_fault(raw_dataset):
    command = f"{sys.executable} -m shardctl inspect {raw_dataset} --head 60 | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_stopping_ends_at_once_with_130_and_nothing_that_looks_whole(photos, tmp_path, stop):
    (tmp_path / "slow.py").write_text(
        "import os, threading\n"
        "def wait(sample):\n"
        "    is_building = len(os.listdir('out/.shardctl')) > 1  # beside the lease: the inputs "
        "are no longer only tried\n"
        "    threading.Event().wait(3600 if is_building else 0)\n"
        "    return sample\n"
    )
    command = command_line("convert", photos, *"out --transform slow:wait --workers 2".split())
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as job:
        assert job.stderr is not None
        next(line for line in job.stderr if "will write" in line)
        job.send_signal(stop)
        rest = job.stderr.read()
        assert job.wait(timeout=10) == 130, rest
    assert "interrupted" in rest
    assert "Traceback" not in rest
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_terminal_gets_a_progress_bar(photos, tmp_path):
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    command = command_line("convert", photos, tmp_path / "out", "--workers", 1)
    subprocess.run(command, stderr=child, stdout=subprocess.DEVNULL, check=True)
    os.close(child)
    shown = b""
    while True:
        try:
            shown += os.read(parent, 65536)
        except OSError:  # the other end is closed, and all has been read
            break
    os.close(parent)
    assert b"60/60" in shown
    assert b"MB/s read, 0 rejected" in shown


def test_sizes_as_people_write_them(cli, photos, out):
    for text in ("128MiB", "0.5MB", "524288"):
        assert cli("convert", photos, out, "--shard-size", text, "--dry-run").code == 0


with_a_full_device = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="only Linux has a device that is always full"
)


@pytest.mark.thorough(after=2)
@with_a_full_device
@pytest.mark.parametrize(
    "arguments", [["--version"], ["convert", "--help"], ["verify", "absent", "--json"]]
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_one_sentence(arguments, unbuffered):
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        ran = run_shardctl(arguments, stdout=full, env=environment)
    assert (ran.returncode, ran.stderr.count("\n")) == (3, 1)
    assert "the output cannot be written (No space left on device)" in ran.stderr


@pytest.mark.thorough
@with_a_full_device
def test_a_message_that_cannot_be_written_leaves_the_other_stream_alone():
    with open("/dev/full", "w") as full:
        ran = run_shardctl(["convert", "/nonexist", "out"], stderr=full)
    assert (ran.returncode, ran.stdout) == (3, "")


@with_a_full_device
def test_a_bug_is_not_taken_for_output_that_cannot_be_written():
    code = """
import sys
import shardctl.cli
def with_a_bug(): raise FileNotFoundError(2, "No such file or directory", "forgotten")
shardctl.cli.version_text = with_a_bug
sys.argv = ["shardctl", "--version"]
shardctl.cli.main()
"""
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert ran.returncode == 1
    assert (
        ran.stderr.splitlines()[-1]
        == "FileNotFoundError: [Errno 2] No such file or directory: 'forgotten'"
    )


def with_a_closed_pipe(stream: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run shardctl with a pipe that nobody reads as "stdout" or "stderr"."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return run_shardctl(arguments, **{stream: writing})
    finally:
        os.close(writing)


@pytest.mark.thorough(after=2)
@pytest.mark.parametrize(
    ("stream", "arguments", "code"),
    [
        ("stderr", ["convert", "/nonexist", "out"], 3),
        ("stdout", ["convert", "/nonexist", "out", "--json"], 3),
        ("stderr", ["convert", "--bogus"], 2),
        ("stdout", ["verify", "damaged.arrow"], 1),
        ("stdout", ["--version"], 0),
    ],
)
def test_a_command_whose_output_nobody_reads_keeps_its_exit_code(
    tmp_path, monkeypatch, stream, arguments, code
):
    monkeypatch.chdir(tmp_path)
    Path("damaged.arrow").write_text("not a shard")
    ran = with_a_closed_pipe(stream, *arguments)
    assert (ran.returncode, ran.stdout or "", ran.stderr or "") == (code, "", "")


@pytest.mark.thorough
def test_a_conversion_whose_notes_nobody_reads_goes_on(photos, out):
    ran = with_a_closed_pipe("stderr", "convert", photos, out)
    assert (ran.returncode, ran.stdout.split()[0]) == (0, "created")
    assert shardctl.verify(out).ok


@pytest.mark.thorough
def test_streams_that_are_closed_are_no_error_and_no_file_takes_their_place(
    cli, photos, tmp_path, monkeypatch
):
    """What is printed to the descriptors 1 and 2 would be written into the file that got them."""
    (tmp_path / "loud.py").write_text(
        "import os\ndef loud(sample):\n    os.write(1, b'said')\n    os.write(2, b'said')\n    "
        "return sample\n"
    )
    monkeypatch.chdir(tmp_path)
    photos = photos / "dunes"
    options = ["--samples-per-shard", "5", "--transform", "loud:loud"]
    assert cli("convert", photos, "whole", *options).code == 0
    everything = "<&- >&- 2>&-"
    for number, (closed, workers) in enumerate(
        [(">&-", 1), ("2>&-", 1), ("<&-", 1), (everything, 1), (everything, 0)]
    ):
        arguments = ["convert", photos, f"out{number}", *options, "--workers", workers]
        command = ["sh", "-c", f'exec "$@" {closed}', "-", *command_line(*arguments)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (ran.returncode, "Traceback" in ran.stderr) == (0, False), ran.stderr
        assert sums(Path(f"out{number}")) == sums(Path("whole"))
