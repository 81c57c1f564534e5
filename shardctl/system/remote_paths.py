"""Folders of this machine that stand for datasets on a store: what lies in them, and what they are called in messages."""

from __future__ import annotations

import json
import os
import re
import tempfile
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

SCRATCH = "shardctl-scratch-"
"""How the names of scratch folders begin."""


SCRATCH_FILES = "files"
"""The folder in a scratch folder that has the files."""


AT = "at"
"""In it, the folder with the one that stands for a dataset, which has the name of the dataset."""


MARK = "mirror.json"
"""In it, the file that says for which dataset it stands: a Mirrored."""


_SHOWN = re.compile(rf"{SCRATCH}\w+/{SCRATCH_FILES}")


@dataclass(frozen=True)
class Mirrored:
    """The dataset that a folder stands for: its URL, and `base`, the folder below it that has all files but `manifest`.

    `name` is that of the local folder. `form` says how shards are brought: WHOLE, ENDS or BLOCKS. `limit` is how many bytes may
    be on the disk, without the files that are `kept`. `version` is that of the manifest, empty if there is none. `listed` says
    whether all files were listed.
    """

    url: str
    base: str
    name: str
    form: str
    limit: int
    manifest: str
    version: str
    kept: tuple[str, ...]
    listed: bool

    def write(self, files: Path) -> None:
        """Write this beside the folder."""
        (files / MARK).write_text(json.dumps(asdict(self)), encoding="utf-8")

    def url_of(self, name: str) -> str:
        """Return the URL of a file of the dataset."""
        return f"{self.url}/{'' if name == self.manifest else self.base}{name}"


@lru_cache(maxsize=64)
def read_mark(files: Path) -> Mirrored:
    """Return for which dataset the folder in `files` stands. Raises OSError if it is none of these."""
    record = json.loads((files / MARK).read_text(encoding="utf-8"))
    return Mirrored(**{**record, "kept": tuple(record["kept"])})


def shown(text: str) -> str:
    """Return a text for people, in which URLs are in the places of paths that stand for them."""
    if SCRATCH not in text:
        return text
    for place in set(_SHOWN.findall(text)):
        for parent in dict.fromkeys([tempfile.gettempdir(), os.path.realpath(tempfile.gettempdir())]):
            try:
                about = read_mark(Path(parent) / place)
            except OSError:
                continue
            folder = f"{parent}/{place}/{AT}/{about.name}"
            text = text.replace(f"{folder}/{about.manifest}", about.url_of(about.manifest))
            text = text.replace(f"{folder}/", about.url_of("")).replace(folder, about.url)
    return text
