"""The script of `make bench`, which makes the tables of docs/performance.md."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "bench" / "tables.py"


@pytest.mark.thorough
def test_a_quick_try_prints_a_table_with_the_machine_the_date_and_the_commit():
    ran = subprocess.run(
        [sys.executable, SCRIPT, "--quick", "--only", "loader-text"], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"^- Date: \d{4}-\d{2}-\d{2}; commit \w+", ran.stdout, re.MULTILINE)
    assert re.search(r"^- Machine: \d+ cores of ", ran.stdout, re.MULTILINE)
    assert "## The loader on text and tokens\n\n| samples | reader |" in ran.stdout
    assert re.search(
        r"^\| lines, beside other loaders \| shardctl \| [\d,]+/s \|", ran.stdout, re.MULTILINE
    )
    assert re.search(
        r"^\| blocks of 2,048 tokens \| np.take on a memmap \| [\d,]+/s \| \d",
        ran.stdout,
        re.MULTILINE,
    )


def test_the_page_names_the_tables_that_the_script_makes():
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    helped = subprocess.run(
        [sys.executable, SCRIPT, "--help"], capture_output=True, text=True, check=True
    ).stdout
    names = re.findall(r"^    ([a-z-]+)  ", helped, re.MULTILINE)
    assert len(names) == 6
    assert [name for name in names if f"`{name}`" not in page] == []
