"""A few inputs before and after a recipe: what `shardctl convert` would store of them, for people
to look at."""

from __future__ import annotations

from shardctl.build.preview.making import Preview as Preview
from shardctl.build.preview.making import Tried as Tried
from shardctl.build.preview.making import make_preview as make_preview
