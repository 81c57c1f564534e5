"""Records as files of JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def json_lines(path: Path, records: Iterable[Any]) -> Path:
    """Write records, in a folder that may be new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def texts_in(path: Path, texts: Iterable[str | None]) -> Path:
    """Write records of one text each."""
    return json_lines(path, ({"text": text} for text in texts))
