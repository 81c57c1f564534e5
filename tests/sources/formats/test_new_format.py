"""A new input format is one file and one row of the table: added to a copy of the package, it is
read, found and listed."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import shardctl
from shardctl.errors import InstallError
from shardctl.sources.format_table import INPUT_FORMATS
from shardctl.sources.formats import Reading, find_format

ROOT = Path(__file__).parents[3]

PAIRS = '''"""Lines of pairs: NAME=VALUE;NAME=VALUE. The first line says that they are such lines."""

import numpy as np

from shardctl.sources.formats.base import Head, Parsed, TextFormat
from shardctl.sources.formats.found_values import batch_of_records
from shardctl.sources.types import Types

MAGIC = b"#pairs\\n"


def records_in(data, first):
    lines = enumerate(data.decode().splitlines(), first)
    return [(number, dict(pair.split("=") for pair in line.split(";"))) for number, line in lines if line]


class Pairs(TextFormat):
    def head(self, data, reading):
        return Head(len(MAGIC) if data.startswith(MAGIC) else 0)

    def types_of(self, part, reading):
        return Types.of_values([record for _, record in records_in(part.data, part.first)], reading.label)

    def parse(self, part, reading, schema, choose):
        records = records_in(part.data, part.first)
        numbers = np.array([number for number, _ in records], np.int64)
        if choose is not None:
            wanted = choose(numbers)
            records, numbers = [each for each, is_wanted in zip(records, wanted) if is_wanted], numbers[wanted]
        return Parsed(numbers, batch_of_records(records, schema), [])
'''

ROW = r"""    InputFormat(
        "pairs",
        (".pairs",),
        "pairs:Pairs",
        Family.TEXT,
        magic=((0, b"#pairs\n"),),
        carrier="lines:LineFile",
        sidecars=(Sidecar((".pairs",), r"(.*)\.index\.pairs", beside=(r"\1.pairs",)),),
    ),
"""

END_OF_TABLE = ')\n"""The formats, in the order in which help texts name them."""'


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The folder of a copy of shardctl with the format of PAIRS."""
    copied = tmp_path / "package" / "shardctl"
    shutil.copytree(
        Path(shardctl.__file__).parent, copied, ignore=shutil.ignore_patterns("__pycache__")
    )
    (copied / "sources" / "formats" / "pairs.py").write_text(PAIRS)
    table = copied / "sources" / "format_table.py"
    before, end, after = table.read_text().partition(END_OF_TABLE)
    assert end
    table.write_text(before + ROW + end + after)
    return copied.parent


def ran(package: Path, *command: str | Path) -> str:
    """Run Python with the copy of the package, and return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(package)}
    done = subprocess.run(
        [sys.executable, *command], cwd=package, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_format_is_one_file_and_one_row(package, tmp_path, out):
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.pairs").write_text("a=1;b=x\n\na=2;b=y\n")
    (source / "a.index.pairs").write_text("2\n")
    (source / "b.pairs.gz").write_bytes(gzip.compress(b"a=3;b=z\n"))
    (source / "c").write_text("#pairs\na=4;b=w\n")  # known by how it begins
    (source / "d.jsonl").write_text('{"a": "0", "b": "json"}\n')
    ran(
        package,
        "-m",
        "shardctl",
        "convert",
        source,
        out,
        "--format",
        "pairs",
        "--workers",
        "1",
    )
    found = [(row["key"], row["a"], row["b"]) for row in shardctl.open(out)]
    assert found == [
        ("a.pairs#1", "1", "x"),
        ("a.pairs#3", "2", "y"),
        ("b.pairs.gz#1", "3", "z"),
        ("c#1", "4", "w"),
    ]


def test_the_help_and_the_written_pages_name_it(package):
    said = ran(package, "-m", "shardctl", "convert", "--help")
    for option in ("--kind", "--format"):
        words = said.partition(option)[2].partition("]")[0]
        assert "lance,pairs,huggingface" in "".join(words.split())
    code = """
import sys
sys.path += sys.argv[1:]
from write_cli_docs import DOCS, command_page
from shardctl.transforms.recipe_files.reading import recipe_schema
page = (DOCS / "commands" / "convert.md").read_text()
print("pairs" in command_page(page, "convert"), "pairs" in str(recipe_schema()))
"""
    assert ran(package, "-c", code, ROOT / "scripts" / "docs").split() == ["True", "True"]


def test_the_extra_that_a_message_names_can_be_installed():
    project = (ROOT / "pyproject.toml").read_text()
    extras = {row.needs.extra for row in INPUT_FORMATS if row.needs is not None}
    assert {extra for extra in extras if f"\n{extra} = [" in project} == extras


@pytest.mark.parametrize(
    ("ending", "module", "package"),
    [
        (".h5", "h5py", "h5py"),
        (".lance", "lance", "pylance"),
        (".mdb", "lmdb", "lmdb"),
        (".array_record", "array_record.python", "array_record"),
    ],
)
def test_a_missing_package_is_named(ending, module, package, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    find_format.cache_clear()
    with pytest.raises(InstallError, match=f"needs the package {package}: .*pip install "):
        find_format(ending, Reading())
