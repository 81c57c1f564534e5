"""Wrong input gets one sentence, the right exit code, and changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

IN, OUT = "in", "out"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with in/ (two images), text/, empty/, full/ (somebody's files) and a file."""
    monkeypatch.chdir(tmp_path)
    for folder in ("in", "text", "empty", "full"):
        (tmp_path / folder).mkdir()
    first, second = sorted(photos.rglob("*.jpg"))[:2]
    (tmp_path / "in" / "1.jpg").write_bytes(first.read_bytes())
    (tmp_path / "in" / "2.jpg").write_bytes(second.read_bytes())
    (tmp_path / "text" / "a.xml").write_text("x")
    (tmp_path / "full" / "thesis.doc").write_text("years of work")
    (tmp_path / "file").write_text("a file")
    (tmp_path / "bad.toml").write_text("store = ")
    (tmp_path / "odd.toml").write_text("colour = 1")
    return tmp_path


WRONG: list[tuple[list[str], int, str]] = [
    (["convert", "absent", OUT], 3, "absent: no such file or folder"),
    (["convert", "empty", OUT], 3, "empty: holds no files"),
    (["convert", "text", OUT], 3, "text: no image and no text and no table among its 1 files (1 .xml)"),
    (["convert", "text", OUT, "--kind", "image"], 3, "text: no image among its 1 files (1 .xml)"),
    (["convert", IN, "in/out"], 2, "in/out: is inside the source in"),
    (["convert", IN, IN], 2, "in: is inside the source in"),
    (["convert", IN, "."], 2, "in: is inside the destination"),
    (["convert", IN, "full"], 3, "full: holds something else (thesis.doc)"),
    (["convert", IN, "file"], 3, "file: is a file"),
    (
        ["convert", IN, OUT, "--crop", "0"],
        2,
        "crop: size must be 224, or 320x240 for width x height, with sides of 1 to 16384 pixels; it is '0'",
    ),
    (["convert", IN, OUT, "--resize", "big"], 2, "resize: size must be 224, or 320x240"),
    (["convert", IN, OUT, "--resize", "99999"], 2, "with sides of 1 to 16384"),
    (["convert", IN, OUT, "--crop", "9", "--random-crop", "9"], 2, "contradict"),
    (["convert", IN, OUT, "--store", "source", "--crop", "9"], 2, "keeps the original bytes, so crop cannot apply"),
    (["convert", IN, OUT, "--store", "raw"], 2, "add a resize to WIDTHxHEIGHT (--resize 32x32 for images of 32x32) or a crop"),
    (["convert", IN, OUT, "--store", "raw", "--resize", "9"], 2, "store raw needs every image to have the same size"),
    (["convert", IN, OUT, "--store", "tiff"], 2, "store 'tiff' is not known"),
    (["convert", IN, OUT, "--compression", "rar"], 2, "compression 'rar' is not known"),
    (["convert", IN, OUT, "--flip", "2"], 2, "must be a number from 0 to 1"),
    (["convert", IN, OUT, "--variants", "3"], 2, "nothing in the recipe is random"),
    (["convert", IN, OUT, "--variants", "0", "--flip", "1"], 2, "variants must be a whole number from 1"),
    (["convert", IN, OUT, "--seed", "-1"], 2, "seed must be a whole number"),
    (["convert", IN, OUT, "--shuffle", "yes"], 2, "neither a seed"),
    (["convert", IN, OUT, "--workers", "many"], 2, "neither auto nor a whole number"),
    (["convert", IN, OUT, "--shard-size", "12 parsecs"], 2, "is not a size; write 128MiB"),
    (["convert", IN, OUT, "--shard-size", "1MiB", "--samples-per-shard", "5"], 2, "contradict each other"),
    (["convert", IN, OUT, "--transform", "nowhere:f"], 2, "cannot import nowhere"),
    (["convert", IN, OUT, "--transform", "json:nothing"], 2, "json has no nothing"),
    (["convert", IN, OUT, "--transform", "json"], 2, "not of the form module:function"),
    (["convert", IN, OUT, "--kind", "text", "--crop", "9"], 2, "crop is for images"),
    (["convert", IN, OUT, "--kind", "text", "--store", "png"], 2, "store png is for images"),
    (["convert", IN, OUT, "--recipe", "absent.toml"], 2, "absent.toml: no such recipe file"),
    (["convert", IN, OUT, "--recipe", "bad.toml"], 2, "bad.toml:1: not a TOML file: Invalid value"),
    (["convert", IN, OUT, "--recipe", "odd.toml"], 2, "odd.toml:1: recipe key 'colour' is not known; did you mean columns?"),
    (["convert", IN, OUT, "--labels", "absent.csv"], 3, "absent.csv: cannot be read"),
    (["convert", IN, OUT, "--labels", "folder"], 3, "no input is in a folder that could be its class"),
    (["convert", IN, OUT, "--split", "folder"], 3, "some inputs are in no folder that could name their split"),
    (["convert", IN], 2, "Missing argument"),
    (["convert", IN, OUT, "--colour"], 2, "there is no option --colour; `shardctl convert --help` lists all"),
    (["verify", "absent"], 3, "absent: no such dataset"),
    (["inspect", "absent", "--key", "x"], 3, "absent: no such dataset"),
    (["verify", "full"], 3, "full: not a dataset (it has no manifest.json)"),
    (["inspect", "absent"], 3, "absent: no such dataset"),
    (["inspect", "file"], 3, "file: not a readable Arrow file"),
    (["inspect", "full", "--block", "1"], 2, "need --shard"),
    (["inspect", "file", "--key", "x"], 2, "is one shard"),
    (["inspect", "full", "--key", "x", "--head", "3"], 2, "contradict each other"),
    (["convert", IN, OUT, "--worker-memory", "1MB"], 2, "needs more than 976.6 KiB of memory; give at least 256 MiB"),
    (["convert", IN, OUT, "--input-timeout", "soon"], 2, "neither a number of seconds nor none"),
    (["convert", IN, OUT, "--input-timeout", "0"], 2, "0 seconds is impossible"),
    (["convert", IN, OUT, "--copy-rejects", "in/bad"], 2, "in/bad: rejects can be copied to a folder of their own"),
    (["convert", IN, OUT, "--if-running", "hope"], 2, "'hope' is not one of 'wait', 'fail'"),
    (["repair", "absent"], 3, "absent: no such dataset"),
    (["repair", "full"], 3, "full: not a dataset"),
    (["repair", "file"], 2, "file: one shard"),
    (["repair", "full", "--source", "absent"], 3, "absent: no such file or folder"),
    (["bench", "absent"], 3, "absent: no such dataset"),
    (["bench", "full", "--epochs", "0"], 2, "nothing to measure"),
    (["bench", "full", "--epochs", "1", "--seconds", "1"], 2, "contradict each other"),
    (["demo", "full"], 3, "full: is not empty"),
    (["polish"], 2, "there is no command 'polish'"),
]


@pytest.mark.parametrize(("arguments", "code", "sentence"), WRONG, ids=[" ".join(case[0]) for case in WRONG])
def test_a_sentence_and_an_exit_code(cli: Any, here: Path, arguments: list[str], code: int, sentence: str) -> None:
    before = snapshot(here)
    ran = cli(*arguments)
    assert sentence in ran.err
    assert ran.code == code
    assert ran.out == ""
    assert snapshot(here) == before


def snapshot(root: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in root.rglob("*")}


def test_with_json_the_sentence_is_json_too(cli: Any) -> None:
    ran = cli("verify", "absent", "--json")
    assert ran.json == {"error": "absent: no such dataset", "exit_code": 3}
    assert ran.err == ""


AS_NOBODY = """
import os, sys
from shardctl.cli import run
run(['convert', 'in', 'WARM', '--workers', '0', '-q'])  # now all modules are loaded, which that user may not read
os.setgid(65534); os.setuid(65534)
sys.exit(run(sys.argv[1:]))
"""


def run_as_nobody(here: Path, warm: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a user without rights, since root may read and write anywhere."""
    for folder in (here, *here.parents):
        folder.chmod(folder.stat().st_mode | 0o055)
    # Nor may that user write the figures of a coverage run.
    unmeasured = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    command = [sys.executable, "-c", AS_NOBODY.replace("WARM", warm), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=here, env=unmeasured)


@pytest.mark.thorough(after=1)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody who may not read")
@pytest.mark.parametrize("name", ["2.jpg", "scan"])
def test_an_input_that_may_not_be_read_is_rejected_and_named(here: Path, name: str) -> None:
    """Also where its name does not tell whether it is an image."""
    (here / "in" / name).write_bytes((here / "in" / "2.jpg").read_bytes())
    (here / "in" / name).chmod(0)
    (here / "open").mkdir()
    (here / "open").chmod(0o777)
    done = run_as_nobody(here, "open/warm", "convert", "in", "open/out", "--workers", "0", "-q")
    assert done.returncode == 0, done.stderr
    assert f"read: unreadable; for instance {name}: cannot be read (Permission denied)" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody who may not write")
def test_a_destination_that_may_not_be_written_is_said(here: Path) -> None:
    locked = here / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    for number, out in enumerate(("locked", "locked/out")):
        done = run_as_nobody(here, f"warm{number}", "convert", "in", out, "--workers", "0", "-q")
        assert done.returncode == 3, done.stderr
        assert "cannot write here" in done.stderr
        assert "Traceback" not in done.stderr
    assert list(locked.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody who may not look")
@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["run", "dry"])
def test_a_destination_where_another_user_works_is_said(here: Path, more: tuple[str, ...]) -> None:
    (here / "out" / ".shardctl").mkdir(parents=True)
    (here / "out" / ".shardctl").chmod(0o700)
    done = run_as_nobody(here, "warm", "convert", "in", "out", "--workers", "0", "-q", *more)
    assert done.returncode == 3, done.stderr
    assert done.stderr == f"shardctl: {here / 'out'}: cannot write here (Permission denied)\n"


def test_files_of_many_other_kinds_are_all_counted(cli: Any, here: Path) -> None:
    for number in range(9):
        (here / "in" / f"x.kind{number}").write_text("")
    said = cli("convert", "in", "out", "--workers", "0").err
    assert "other files, not converted: " in said
    assert " and 3 more, 9 in all" in said
