"""What the first records show of their masks, objects and places, and what stays as it is beside moved pixels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError, Rejection, UsageError
from shardctl.format.roles import Image, Mask, Objects, Roles, Sample
from shardctl.images.codecs.image import Opened, decode_mask
from shardctl.making.shards.job import Job, PlannedUnit
from shardctl.making.shards.records import FirstRecords, TableImages, is_nothing
from shardctl.sources.annotations.base import AnnotationRule
from shardctl.sources.annotations.finishing import Evidence, as_stored
from shardctl.sources.annotations.objects import (
    ANNOTATED,
    ITEMS,
    OBJECTS,
    are_shares,
    odd_boxes,
    said_of_boxes,
    size_of_runs,
    why_shares,
)
from shardctl.sources.boxes import (
    LOOKED_AT,
    Kind,
    beside_images,
    column_of,
    has_values_to_see,
    is_named_mask,
    kinds_of,
    said_of_unknown,
    ways_out,
    why_no_masks,
    why_not_as_said,
    why_wrong,
)
from shardctl.sources.image_columns import FRAME, marked_masks, with_said, without_masks
from shardctl.system.processes.worker_state import WorkerProgress
from shardctl.system.text import counted, printable, some

MOST_CLASSES = 64
"""Different numbers in an image of 8 bits above which it is a picture, where neither a name nor a
person says that it is a mask."""

NUMBERS = ("1", "L", "P", "I;16", "I")
"""Pillow's modes of images with one number for each pixel."""


@dataclass
class _Masks:
    """What the values of a field that may be one of masks are. `bits` are 0 until there is a mask.

    It is `named` where its name or a person says mask. Of others the numbers tell: they are not
    `odd` where there are few.
    """

    named: bool
    bits: int = 0
    odd: bool = False
    has_numbers: bool = False
    lossy: str | None = None


def inspect_first_records(
    records: FirstRecords,
) -> tuple[Job, dict[str, str], list[str], list[str]]:
    """Look at the images and at what is marked in them in the first records of a job.

    Return the job once they have shown what it has: which columns are masks, of how many bits, and
    in which frame; the frames that were found, by the names that fields have in the records;
    notices and warnings.

    One image of other colours or of another size is enough to show that a field is none of masks.
    Raises UsageError then where it had to be one, and if there is no mask among the values;
    InputError where sizes of masks say both frames, and for boxes that are shares of the size of
    their image.
    """
    job, progress, masks = records.job, records.progress, {}
    old_names = job.old_names
    for old in marked_masks(job.fields):
        assert job.fields is not None, "it has masks"
        name = job.renames.get(old, old)
        is_named = is_named_mask(job.fields.field(old).with_name(name))
        masks[name] = _Masks(is_named or name in job.recipe.mask_fields)
    wanted = [
        planned
        for planned in records.units
        if masks
        or (
            _unsized(planned.file.columns) is not None
            if job.whole
            else OBJECTS in job.annotation_rules
        )
    ]
    if not wanted or (job.recipe.store is None and not masks):
        return job, {}, [], []
    look = _Look(job, masks, progress)
    for planned, key, fields in replace(records, units=wanted):
        progress.enter("decode")
        with suppress(Rejection):  # the record is a reject, whatever its masks are
            look.add(planned, key, fields)
    progress.leave()
    unnamed = [name for name, found in masks.items() if not found.named]
    for name in unnamed:
        # they may all be drawings: nothing says which of them marks what
        masks[name].odd |= not look.has_picture
    job = _with_masks(job, masks)
    are_masks = [name for name in masks if isinstance(job.layout.roles.get(name), Mask)]
    frames, notices = dict[str, str](), list[str]()
    if doubtful := [name for name in unnamed if name not in are_masks and masks[name].has_numbers]:
        are = "is" if len(doubtful) == 1 else "are"
        notices.append(
            f"{some(doubtful)} {are} read as grey pictures, and may be masks: --kind image "
            f"--mask-fields {','.join(doubtful)}"
        )
    among = f" of the {look.count:,} that were looked at"
    for name, evidence in look.evidence.items():
        if name == OBJECTS or name in are_masks:
            notices += evidence.notices(printable(name), among)
            if (frame := evidence.frame()) is not None:
                frames[old_names[name]] = frame
    if not job.whole and frames:
        job = replace(job, fields=with_said(job.fields, FRAME, frames))
    notices += _said_of_boxes(job, look)
    warnings = [
        f"{printable(name)}: its masks are {masks[name].lossy}, which changes numbers; write "
        "them as PNG and convert again"
        for name in are_masks
        if masks[name].lossy is not None
    ]
    return job, frames, notices, warnings


class _Look:
    """What the records that were looked at have shown, of `count` images.

    `with_boxes` have some, of which all boxes of `shares` are shares of the size.
    """

    def __init__(self, job: Job, masks: dict[str, _Masks], progress: WorkerProgress) -> None:
        self._job, self._masks, self._rules = job, masks, job.annotation_rules
        self._images = TableImages(job, progress)
        self.evidence = {
            name: Evidence() for name, rule in self._rules.items() if rule.frame == "auto"
        }
        self.rule = AnnotationRule()
        self.with_boxes = self.shares = self.outside = self.degenerate = 0
        self.count = 0
        self.has_picture = all(found.named for found in masks.values())

    def add(self, planned: PlannedUnit, key: str, fields: Sample) -> None:
        """Look at one record. Raises Rejection if its image cannot be opened."""
        recipe, opened = self._job.recipe, None
        if recipe.store is not None:
            name = self._job.image_column or "image"
            data = self._images.find(fields.get("image"), name, planned)[0]
            opened = recipe.open_image(data)
            self.count += 1
            seen = self.has_picture or opened.mode not in NUMBERS
            self.has_picture = seen or self._has_many(data)
        for name, found in self._masks.items():
            if not is_nothing(value := fields.get(name)) and not found.odd:
                self._add_mask(value, name, found, planned, opened, key)
        if opened is None:
            return
        objects = fields.get(OBJECTS) if OBJECTS in self._rules else None
        if isinstance(objects, dict) and objects.get("bbox"):
            if opened.orientation != 1 and OBJECTS in self.evidence:
                self.evidence[OBJECTS].add(key, opened, size_of_runs(objects))
            self._add_boxes(objects["bbox"], opened, self._rules[OBJECTS])
        if (given := _unsized(planned.file.columns)) is not None:
            self._add_boxes(
                given[OBJECTS]["bbox"], opened, AnnotationRule(given[ANNOTATED]["boxes"])
            )

    def _add_mask(
        self,
        value: object,
        name: str,
        found: _Masks,
        planned: PlannedUnit,
        opened: Opened | None,
        key: str,
    ) -> None:
        """Look at a value of a field that may be one of masks. What cannot be read shows
        nothing."""
        recipe = self._job.recipe
        try:
            data = self._images.find(value, name, planned)[0]
            mask = recipe.open_image(data)
            found.has_numbers |= mask.mode in NUMBERS
            if not found.named and (
                mask.mode not in NUMBERS or _lossy(data) or self._has_many(data, 8)
            ):
                self.has_picture = found.odd = True
                return
            bits = 8 * decode_mask(data, recipe.max_pixels, recipe.keep_truncated).dtype.itemsize
        except Rejection as rejection:
            found.odd |= rejection.error == "not-a-mask"
            return
        main = opened or mask
        if mask.size not in (main.size, as_stored(main.size, main.orientation)):
            found.odd = True
            return
        found.bits = max(found.bits, bits)
        found.lossy = found.lossy or _lossy(data)
        if main.orientation != 1 and mask.orientation == 1 and name in self.evidence:
            self.evidence[name].add(key, main, mask.size)

    def _has_many(self, data: bytes, most_bits: int = 16) -> bool:
        """Return whether an image with a number for each pixel, of so many bits at most, has more
        numbers than classes are."""
        recipe = self._job.recipe
        values = decode_mask(data, recipe.max_pixels, recipe.keep_truncated)
        return (
            8 * values.itemsize <= most_bits
            and int(np.count_nonzero(np.bincount(values.ravel()))) > MOST_CLASSES
        )

    def _add_boxes(self, boxes: Any, opened: Opened, rule: AnnotationRule) -> None:
        try:
            given = np.asarray(boxes, np.float64).reshape(len(boxes), 4)
        except (TypeError, ValueError):  # the worker says what is wrong with them
            return
        self.rule = rule
        self.with_boxes += 1
        self.shares += are_shares(given)
        if opened.orientation == 1:  # else it is not known in which frame they are
            outside, degenerate = odd_boxes(given, opened.size)
            self.outside += outside
            self.degenerate += degenerate


def _unsized(columns: dict[str, Any]) -> dict[str, Any] | None:
    """Return what a labels file says of an image if that has objects in pixels, of an image whose
    size it does not say."""
    how, objects = columns.get(ANNOTATED), columns.get(OBJECTS)
    boxes = objects and objects.get("bbox")
    in_pixels = how is not None and not how["relative"] and how["width"] is None
    return columns if boxes and in_pixels else None


def _with_masks(job: Job, masks: dict[str, _Masks]) -> Job:
    """Return the job once it is known which columns are masks, and of how many bits. Raises
    UsageError."""
    recipe = job.recipe
    none = [name for name, found in masks.items() if found.odd or not found.bits]
    if said := [name for name in none if name in recipe.mask_fields]:
        raise UsageError(why_not_as_said(said))
    if none and recipe.moving:
        step, named = recipe.moving[0].name, [name for name in none if masks[name].named]
        raise UsageError(
            why_no_masks(step, named)
            if named
            else f"{why_wrong(step, none)}. {ways_out(step, none, [])}"
        )
    roles = dict(job.layout.roles.by_name)
    for name, found in masks.items():
        if name in none:
            roles[name] = Image("source")  # as other images of records that no step works on
        elif isinstance(role := roles[name], Mask):
            roles[name] = replace(role, bits=found.bits)
    fields = job.fields
    if fields is not None and none:
        fields = without_masks(fields, [job.old_names[name] for name in none])
    return replace(job, layout=replace(job.layout, roles=Roles(roles)), fields=fields)


def _said_of_boxes(job: Job, look: _Look) -> Iterable[str]:
    """Say which boxes are not as they should be. Raises InputError if all of those of records are
    shares."""
    used = bool(job.recipe.moving) or look.rule.boxes != "keep" or look.rule.frame != "auto"
    if not job.whole and used and look.with_boxes and look.shares == look.with_boxes:
        raise InputError(
            f"{why_shares('the records')}, or keep the objects with --unmoved {OBJECTS}"
        )
    # those of labels files are counted where they are read
    degenerate = 0 if job.whole else look.degenerate
    for said in said_of_boxes(look.outside, degenerate, look.rule):
        yield f"{OBJECTS}: of {counted(look.count, 'image')} that were looked at, {said}"


def _lossy(data: bytes) -> str | None:
    """Return the format of an encoded image whose numbers change when it is written, None for
    others."""
    if data.startswith(b"\xff\xd8"):
        return "JPEG"
    return "lossy WebP" if data[:4] == b"RIFF" and data[12:16] == b"VP8 " else None


def refuse_unmoved(records: FirstRecords) -> list[str]:
    """Return notices on what the recipe leaves as it is beside moved pixels. Raises UsageError for
    places, masks, images."""
    job = records.job
    columns = columns_beside(job)
    to_see = [f.name for f in columns if has_values_to_see(f.type)]
    of_objects = []
    if job.recipe.moving and OBJECTS in job.annotation_rules:
        members = job.layout.columns.field(OBJECTS).type
        of_objects = [f.with_name(f"{OBJECTS}.{f.name}") for f in members if f.name not in ITEMS]
    if not columns and not of_objects:
        return []
    step, shown = job.recipe.moving[0].name, _first_kinds(records, to_see)
    wrong, unknown = beside_images([*columns, *of_objects], job.layout.roles.by_name, shown)
    if wrong:
        names = [f.name for f in columns]
        stay = dict.fromkeys(column_of(place, names) or OBJECTS for place in wrong)
        of_records = [name for name in stay if name in job.old_names]
        of_labels = [name for name in stay if name not in of_records]
        raise UsageError(f"{why_wrong(step, wrong)}. {ways_out(step, of_records, of_labels)}")
    return [said_of_unknown(step, unknown, "--unmoved")] if unknown else []


def columns_beside(job: Job) -> list[pa.Field]:
    """Return the columns that stay as they are while the pixels of the images are moved; none where
    nothing moves."""
    if not job.recipe.moving:
        return []
    moved = {
        name for name, role in job.layout.roles.by_name.items() if isinstance(role, Mask | Objects)
    }
    moved |= {"key", "image", "variant", *job.recipe.unmoved, *job.annotation_rules}
    return [f for f in job.layout.columns if f.name not in moved]


def _first_kinds(records: FirstRecords, names: list[str]) -> dict[str, set[Kind]]:
    """Return what the first values of columns are.

    One unit that can be read is enough, as each of a compressed file may cost all that is before
    it; more are looked at only while no value of a column says anything.
    """
    found: dict[str, set[Kind]] = {name: set() for name in names}
    looked_at: Counter[int] = Counter()
    for planned, _, fields in records:
        if all(found.values()) and not looked_at[planned.number]:
            break
        looked_at[planned.number] += 1
        if looked_at[planned.number] <= LOOKED_AT:
            records.progress.enter("decode")
            values = {**fields, **planned.file.columns}
            for name in names:
                found[name] |= kinds_of(values.get(name))
    records.progress.leave()
    return found
