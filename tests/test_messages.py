"""Every message that shardctl can say has an entry in the table, which the page on troubleshooting is written from."""

from __future__ import annotations

import runpy
from collections import Counter

from shardctl.cli.show.message_table import is_in, read_messages
from tests.conftest import ROOT

WRITER = runpy.run_path(str(ROOT / "scripts" / "docs" / "write_troubleshooting.py"))
TABLE = read_messages(ROOT / "docs" / "messages")
ENTRIES = [entry for entries in TABLE.values() for entry in entries]


def test_every_message_has_an_entry() -> None:
    assert WRITER["without_entry"]([ROOT / "shardctl"], TABLE) == []


def test_every_entry_is_about_a_message_and_has_its_own_name() -> None:
    said = [each.text for each in WRITER["said"]([ROOT / "shardctl"])]
    idle = [text for entry in ENTRIES for text in entry.says if not any(is_in(text, message) for message in said)]
    assert idle == []
    assert [name for name, count in Counter(entry.id for entry in ENTRIES).items() if count > 1] == []
    assert [entry.id for entry in ENTRIES if not (entry.means and entry.do)] == []


def test_the_page_is_written_from_the_table() -> None:
    written = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    assert written == WRITER["page"](TABLE), "run `make docs`"
