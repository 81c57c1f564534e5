"""The step that tidies the white space of texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from shardctl.format.arrays import Bytes, Places
from shardctl.transforms.settings import Flag, Whole, setting
from shardctl.transforms.text.base import TextTransform
from shardctl.transforms.text.characters import NEWLINE, texts_of_kept
from shardctl.transforms.text.words import Words

SPACE = 0x20
RETURN = 0x0D


@dataclass(frozen=True)
class Whitespace(TextTransform):
    """Makes runs of white space one space, removes it at the edges of lines and texts, and limits
    blank lines."""

    name: ClassVar[str] = "whitespace"
    blank_lines: int = setting(Whole(0, 1000), 1, "Most blank lines that follow each other.")
    one_line: bool = setting(
        Flag(), False, "Make newlines spaces too, so that each text is one line."
    )

    def changed(self, texts: pa.Array) -> pa.Array:
        """Return the texts with tidy white space. Lines end at \\n, \\r\\n or \\r, and then at
        \\n."""
        words = Words(texts)
        data, offsets = words.bytes
        if not len(data):
            return texts
        # What is before the first word of a text, and after its last, goes. A gap is between two
        # words of one text; nearly all are one space or one newline, and stay.
        gaps = (
            np.flatnonzero(np.diff(words.text) == 0)
            if words.texts > 1
            else np.arange(max(0, len(words) - 1))
        )
        starts, ends = words.ends[gaps], words.starts[gaps + 1]
        fine = data[starts] == SPACE
        if not self.one_line:
            fine |= data[starts] == NEWLINE
        odd = ~(fine & (ends - starts == 1))
        edges = int(words.spaces.sum()) - int((ends - starts).sum())
        if not odd.any() and not edges:
            return texts
        keep = ~words.spaces
        keep[starts[~odd]] = True
        starts, ends = starts[odd], ends[odd]
        newlines = (
            np.zeros(len(starts), np.int64) if self.one_line else _line_ends(data, starts, ends)
        )
        kept = np.maximum(1, np.minimum(newlines, self.blank_lines + 1))
        out = np.where(newlines > 0, NEWLINE, SPACE).astype(np.uint8)
        data = data.copy()
        for place in range(int(kept.max(initial=0))):
            wide = kept > place
            places = starts[wide] + place
            keep[places], data[places] = True, out[wide]
        return texts_of_kept(data, keep, offsets)


def _line_ends(data: Bytes, starts: Places, ends: Places) -> Places:
    """Return how many lines end in each stretch of white space, (n,)."""
    places = np.flatnonzero(data == NEWLINE)
    if (data == RETURN).any():
        returns = np.flatnonzero(data == RETURN)
        alone = np.append(data, SPACE)[returns + 1] != NEWLINE
        places = np.sort(np.concatenate([places, returns[alone]]))
    return np.searchsorted(places, ends) - np.searchsorted(places, starts)
