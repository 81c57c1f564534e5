"""Every message that shardctl can say has an entry in the table, which the page on troubleshooting
is written from."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from doc_snippets import ROOT

from shardctl.system.messages import all_entries

WRITER = runpy.run_path(str(ROOT / "scripts" / "docs" / "write_troubleshooting.py"))
TABLE = WRITER["read_messages"](ROOT / "docs" / "messages")
ENTRIES = [entry for entries in TABLE.values() for entry in entries]


def test_the_page_is_written_from_the_table_and_can_be_read_again() -> None:
    written = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    assert written == WRITER["page"](TABLE), "run `make docs`"
    assert [(each.name, list(each.says)) for each in all_entries()] == [
        (each.id, each.says) for each in ENTRIES
    ]


def test_two_files_cannot_have_one_title(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.toml").write_text('title = "One"\nmessage = []\n')
    with pytest.raises(ValueError, match=r"b\.toml: another file has this title too"):
        WRITER["read_messages"](tmp_path)
