"""Every message that shardctl can say has an entry in the table, which the page on troubleshooting
is written from."""

from __future__ import annotations

import runpy
from collections import Counter
from pathlib import Path

import pytest
from doc_snippets import ROOT

from shardctl.system.messages import all_entries, is_in

WRITER = runpy.run_path(str(ROOT / "scripts" / "docs" / "write_troubleshooting.py"))
TABLE = WRITER["read_messages"](ROOT / "docs" / "messages")
ENTRIES = [entry for entries in TABLE.values() for entry in entries]


def test_every_message_has_an_entry() -> None:
    missing = [
        f"{each.place}: {each.text}" for each in WRITER["without_entry"]([ROOT / "shardctl"], TABLE)
    ]
    assert missing == [], (
        "write an entry in docs/messages/, or add the text to `says` of one; then run `make docs`"
    )


def test_every_entry_is_about_a_message_and_has_its_own_name() -> None:
    said = {each.text for each in WRITER["said"]([ROOT / "shardctl"])}
    idle = [
        f"{entry.id}: {text}"
        for entry in ENTRIES
        for text in entry.says
        if not any(is_in(text, each) for each in said)
    ]
    assert idle == [], "no message says this any more"
    assert [
        name for name, count in Counter(entry.id for entry in ENTRIES).items() if count > 1
    ] == []
    assert [entry.id for entry in ENTRIES if not (entry.means and entry.do)] == []


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
