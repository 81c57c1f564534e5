"""Where samples come from: small siblings behind one protocol, one per kind of input."""

from __future__ import annotations

from collections.abc import Callable

from shardctl.sources.base import Input, Source
from shardctl.sources.images import ImageSource
from shardctl.sources.texts import TextSource
from shardctl.sources.walk import FoundFile, place_of, walk

SOURCES: dict[str, Callable[[], Source]] = {"image": ImageSource, "text": TextSource}
"""The kinds that `--kind` may name."""

__all__ = ["SOURCES", "FoundFile", "ImageSource", "Input", "Source", "TextSource", "place_of", "walk"]
