"""The frame of annotations where their size does not tell it: the other images of the same source
do.

EXIF may turn an image by 180°, mirror it, or turn a square one. Its size is then the same in both
frames. Some images are looked at before there is a plan, so that every worker takes the same frame.
docs/annotations.md has the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shardctl.errors import InputError, Rejection
from shardctl.images.codecs.image import Opened, open_image
from shardctl.sources.annotations.base import Annotations, InputPlace
from shardctl.sources.annotations.finishing import may_be_turned
from shardctl.sources.annotations.masks import MASK, MASK_FILE
from shardctl.sources.annotations.objects import ANNOTATED, OBJECTS
from shardctl.sources.files import BEGIN_BYTES, begin_of, begins_ahead
from shardctl.system.locations import follow, is_stored
from shardctl.system.permutation import evenly_spaced
from shardctl.system.text import counted, printable

LOOKED_AT = 4096
"""Images of a source whose first bytes `convert` looks at. All others follow what these say, or
become rejects."""

Size = tuple[int, int]
"""(width, height)."""

ITS_OWN = (0, 0)
"""Stands for the size of a mask that has an EXIF orientation of its own, which says nothing of
others."""

_WHOLE = 1 << 26
"""Bytes of a file of which the first ones do not say its size."""

_JPEG = b"\xff\xd8"


@dataclass
class Evidence:
    """Images that EXIF turns: the paths of those that say a frame, and how many do not, with a size
    and without."""

    stored: list[str] = field(default_factory=list)
    upright: list[str] = field(default_factory=list)
    unclear: int = 0
    unsized: int = 0

    def add(self, shown: str, stored: Size, upright: Size, said: Size | None) -> None:
        """Add an image, whose size as it is stored and upright is known, and the size that its
        annotations say, if they do."""
        if said is None:
            self.unsized += 1
        elif stored == upright:
            self.unclear += said == stored
        elif said == stored:
            self.stored.append(shown)
        elif said == upright:
            self.upright.append(shown)

    def frame(self) -> str | None:
        """Return the frame that the images tell, None for none; upright where sizes do not tell
        it."""
        if self.stored:
            return "stored"
        return "upright" if self.upright or self.unclear else None

    def notices(self, name: str, among: str) -> tuple[str, ...]:
        """Say how many images do not tell the frame of the annotations `name`, and which one is
        taken.

        `among` says which images were looked at, "" for all. Raises InputError where sizes say both
        frames.
        """
        stored, upright, unclear = len(self.stored), len(self.upright), self.unclear + self.unsized
        if stored and upright:
            raise InputError(
                f"{name}: EXIF turns some images, and the sizes in the annotations disagree. For "
                f"{counted(stored, 'image')}"
                f" they fit the stored image ({printable(self.stored[0])}), for {upright:,} the "
                "upright image"
                f" ({printable(self.upright[0])}). Convert them separately, or give "
                "--annotation-frame stored or upright, which"
                " rejects the others"
            )
        if not unclear:
            return ()
        if stored or upright:
            kind = "the image as it is stored" if stored else "the upright image"
            return (
                f"{name}: EXIF turns {counted(unclear, 'image')}{among} whose size does not tell "
                "the frame; the annotations"
                f" are taken as those of {kind}, as the sizes of {stored or upright:,}"
                f" other{'' if stored + upright == 1 else 's'} say",
            )
        why = (
            "have the same size in both frames"
            if self.unclear
            else "have no size in the annotations"
        )
        return (
            f"{name}: EXIF turns {counted(unclear, 'image')}{among} that {why}, and no other image "
            "tells the frame; the"
            " annotations are taken as those of the upright image (--annotation-frame stored "
            "changes that)",
        )


def settled(
    found: Annotations, frame: str, place_of: Callable[[Sequence[int]], list[InputPlace]]
) -> Annotations:
    """Return annotations with the frame that some images tell for all, and with a notice on those
    that do not tell it.

    `frame` is the user's: only for `auto` are images looked at. Raises InputError where sizes say
    both frames.
    """
    if frame != "auto" or not {ANNOTATED, MASK_FILE}.intersection(found.columns.column_names):
        return found
    annotated = np.flatnonzero(found.rows >= 0)
    looked_at = annotated[evenly_spaced(len(annotated), LOOKED_AT)].tolist()
    evidence = Evidence()
    places = zip(looked_at, place_of(looked_at), strict=True)
    for row, place in begins_ahead(
        places, lambda each: each[1].opened if is_stored(each[1].opened) else None
    ):
        turn = _turn(place.opened)
        if turn is not None:
            evidence.add(place.opened, *turn, _annotated_size(found, int(found.rows[row]), place))
    return _decided(found, evidence, len(looked_at), len(annotated))


def _decided(found: Annotations, evidence: Evidence, looked_at: int, count: int) -> Annotations:
    whole = looked_at == count
    among = "" if whole else f" of the {looked_at:,} that were looked at"
    said = evidence.notices(OBJECTS if ANNOTATED in found.columns.column_names else MASK, among)
    if whole and not said:  # the rows tell all
        return found
    return replace(found, frame=evidence.frame(), notices=(*found.notices, *said))


def _turn(path: str) -> tuple[Size, Size] | None:
    """Return the size of an image that EXIF turns, as it is stored and upright; None for one that
    it does not turn.

    None also for one whose first bytes do not tell: the worker rejects it if its size does not tell
    either.
    """
    try:
        data = begin_of(path, BEGIN_BYTES)
        if not may_be_turned(data):
            return None
        opened = _opened(data) if data.startswith(_JPEG) else None
        opened = opened or open_image(begin_of(path, _WHOLE))
    except (OSError, Rejection):
        return None  # the worker says what is wrong with it
    if opened.orientation == 1:
        return None
    return (opened.size[::-1] if opened.orientation >= 5 else opened.size), opened.size


def _opened(data: bytes) -> Opened | None:
    try:
        return open_image(data)
    except Rejection:
        return None


def _annotated_size(found: Annotations, row: int, place: InputPlace) -> Size | None:
    """Return the size that annotations say an image has, None if they do not; of a mask it is that
    of its pixels."""
    if ANNOTATED in found.columns.column_names:
        how = found.columns[ANNOTATED][row].as_py()
        known = (
            how is not None
            and not how["relative"]
            and how["width"] is not None
            and how["height"] is not None
        )
        return (how["width"], how["height"]) if known else None
    file = found.columns[MASK_FILE][row].as_py()
    try:
        mask = open_image(begin_of(follow(place.folder, file["path"]), _WHOLE))
    except (OSError, Rejection):
        return None
    return mask.size if mask.orientation == 1 else ITS_OWN
