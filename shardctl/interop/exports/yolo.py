"""YOLO: images/SPLIT/NAME.jpg, labels/SPLIT/NAME.txt with a line for each object, and data.yaml, as
Ultralytics reads them.

Places are shares of the upright image's size, of 12 decimals: to a millionth of a pixel they come
back as they were. An image that is not annotated has no label file, one without objects an empty
one; to YOLO both are background. data.yaml has no `path`: its folders are then looked for beside
it, wherever it is moved to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from shardctl.errors import UsageError
from shardctl.format.roles import Objects
from shardctl.interop.exports.annotated_images import (
    IMAGE_ID,
    NO_NAMES,
    AnnotatedImagesExport,
    ObjectRecord,
    is_whole,
    main_role,
    marked_columns,
    members_of,
    objects_of,
    pictures,
    said_of_members,
    said_of_sizes,
    stored_size,
)
from shardctl.interop.exports.base import (
    KEY,
    Column,
    ColumnEncoding,
    Done,
    PartResult,
    Source,
    Work,
)
from shardctl.interop.exports.loose_files import writing
from shardctl.sources.annotations.yolo import stray_share
from shardctl.system.files import FileFacts
from shardctl.system.text import counted, quoted

DATA = "data.yaml"
IMAGES, LABELS = "images", "labels"
TASKS = {"detect": "bbox", "segment": "segmentation", "pose": "keypoints"}
"""What a line has beside the class for each task: the member of objects."""

VALIDATION = ("valid", "validation", "dev")
"""Splits that are meant by `val`, where none has that name."""

_MEMBERS = "path,names,nc,task,channels,download,kpt_shape,kpt_names,flip_idx,yaml_file"
RESERVED = frozenset((IMAGES, LABELS, *_MEMBERS.split(",")))
"""What splits cannot be called: members of data.yaml, and the folders by which the labels of an
image are found."""

BOOKKEEPING = ("id", "area")
"""Members of objects that number them, or follow from the others: that YOLO has no place for them
is no loss."""

DECIMALS = 12


@dataclass(frozen=True)
class Yolo(AnnotatedImagesExport):
    """A file for each image and one for its objects. `task` is `detect` (boxes), `segment`
    (polygons) or `pose` (keypoints)."""

    task: str = "detect"

    def check(self, source: Source) -> None:
        """Raise InputError if there are no images or objects, UsageError for a task of which there
        are none."""
        super().check(source)
        for split in source.splits:
            if split in RESERVED:
                raise UsageError(
                    f"{source.shown}: the split {split} has another meaning in YOLO; convert again "
                    "with another name (--split)"
                )
        found, wanted = members_of(source), TASKS[self.task]
        needs_some = found.objects > 0 or (self.task == "pose" and not self._points(source))
        if needs_some and not found.having.get(wanted):
            raise UsageError(
                f"{source.shown}: its objects have no {wanted}, which --task {self.task} writes"
            )

    def encoding_of_other(self, column: Column) -> ColumnEncoding | None:
        """Say how a column is written that is no image and no objects: none has a place. The ids of
        images say nothing more."""
        if column.name == IMAGE_ID and is_whole(column.type):
            return None
        return ColumnEncoding(column.target, "value", "YOLO has no place for it")

    def form_of_objects(self) -> str:
        """Return the word for how objects are written."""
        return self.task

    def write(self, work: Work) -> PartResult:
        """Write the images of a shard and their labels."""
        samples = objects = renamed = 0
        points = self._points(work.source)
        with writing(work, LABELS) as loose:
            for picture in pictures(work, self._members):
                samples += 1
                loose.write(f"{IMAGES}/{work.split}/{picture.name}", picture.data)
                renamed += picture.renamed
                if picture.objects is None:
                    continue
                lines = [
                    f"{each['category']} {' '.join(map(_number, cells))}\n"
                    for each in picture.objects
                    if self._is_kept(each, points)
                    and (cells := self._cells(each, picture.size, points)) is not None
                ]
                name = f"{LABELS}/{work.split}/{picture.name.rpartition('.')[0]}.txt"
                loose.write(name, "".join(lines).encode())
                objects += len(lines)
        counts = {"samples": samples, "objects": objects}
        return PartResult(samples, {}, counts, {"renamed": renamed}, loose.piece, loose.found)

    def loose_folders(self, split: str) -> tuple[str, ...]:
        """Return the folders of the images and of the labels of the split."""
        return f"{IMAGES}/{split}", f"{LABELS}/{split}"

    def finish(self, done: Done) -> dict[str, FileFacts]:
        """Write data.yaml."""
        splits = [split for split, found in done.of_splits() if any(each.samples for each in found)]
        lines = self._data_yaml(done.source, splits, self._points(done.source))
        return done.write({DATA: "".join(f"{line}\n" for line in lines).encode()})

    def notes(self, source: Source) -> Iterator[str]:
        """Say what is not in the files."""
        role, found = main_role(source), members_of(source)
        splits = _split_names(source.splits)
        beside = ("ids", "supercategories", "skeleton")
        named = [name for name in beside if getattr(role, name) is not None]
        numbered = [name for name in BOOKKEEPING if found.having.get(name)]
        odd = [split for name, split in splits.items() if name not in ("train", "val", "test")]
        lacking = [name for name in ("train", "val") if name not in splits]
        bare = found.points.get(0, 0) if self.task == "pose" else 0
        said = (
            (role.names is None and found.objects, NO_NAMES),
            (numbered, f"YOLO has no place for the {' and the '.join(numbered)} of the objects"),
            (named, f"YOLO has no place for the {', '.join(named)} of the categories"),
            (odd, f"{DATA} names {', '.join(odd)} too, and YOLO looks for train, val and test"),
            (
                lacking,
                f"{DATA} has no {' and no '.join(lacking)}, and Ultralytics trains with both",
            ),
            (self.task == "segment", "boxes are those around the polygons"),
            (bare, f"{counted(bare, 'object')} without keypoints: written as not visible"),
        )
        yield from (text for applies, text in said if applies)
        yield from said_of_sizes(source)

    def lost_of_objects(self, source: Source) -> str | None:
        """Say what the lines of this task cannot hold of the objects, None if they hold all."""
        found = members_of(source)
        lost = said_of_members(
            found, frozenset(("category", "bbox", "iscrowd", TASKS[self.task], *BOOKKEEPING))
        )
        for task, member in TASKS.items():
            lost = [
                f"{each} (--task {task} writes it)" if each.startswith(f"{member} ") else each
                for each in lost
            ]
        if found.having.get("iscrowd"):
            lost.append(f"all of {counted(found.having['iscrowd'], 'crowd')}")
        if self.task == "segment":
            if found.several:
                lost.append(f"{counted(found.several, 'object')} of several polygons")
            if found.bare:
                lost.append(f"{counted(found.bare, 'object')} without a polygon")
        points = self._points(source)
        uneven = sum(number for count, number in found.points.items() if count not in (0, points))
        if points and uneven:
            lost.append(f"{counted(uneven, 'object')} whose keypoints are not {points}")
        if outside := _outside(source, self):
            lost.append(f"{counted(outside, 'object')} with places outside of the image")
        if found.unannotated:
            lost.append(
                f"that {counted(found.unannotated, 'image is', 'images are')} not annotated"
            )
        return ", ".join(lost) or None

    def _points(self, source: Source) -> int:
        """Return how many keypoints the line of an object has."""
        if self.task != "pose":
            return 0
        names = main_role(source).keypoints
        return max(members_of(source).points, default=0) if names is None else len(names)

    def _is_kept(self, each: ObjectRecord, points: int) -> bool:
        """Return whether an object may have a line: it is no crowd, and has one polygon, or
        `points` keypoints or none."""
        if each.get("iscrowd"):
            return False
        if self.task == "pose":
            return len(each["keypoints"] or ()) in (0, points)
        return self.task != "segment" or len(each["segmentation"] or ()) == 1

    @property
    def _members(self) -> tuple[str, ...]:
        """The members of objects that a line is made of."""
        beside = () if self.task == "segment" else ("bbox",)
        return "category", "iscrowd", TASKS[self.task], *beside

    def _cells(self, each: ObjectRecord, size: tuple[int, int], points: int) -> list[float] | None:
        """Return the numbers in the line of an object; None if places of it are too far outside of
        the image for YOLO's readers."""
        if self.task == "segment":
            cells = inside = _shares(each["segmentation"][0], size)
            lengths: list[float] = []
        else:
            (across, down), (x, y, width, height) = size, each["bbox"]
            inside = [(x + width / 2) / across, (y + height / 2) / down]
            lengths = [width / across, height / down]
            cells = inside + lengths
        if self.task == "pose":
            for x, y, visible in each["keypoints"] or [[0, 0, 0]] * points:
                place = _shares([x, y], size)
                inside += place if visible > 0 else []
                cells += [*place, visible]
        return cells if stray_share(inside, lengths) is None else None

    def _data_yaml(self, source: Source, splits: Sequence[str], points: int) -> Iterator[str]:
        """Yield the lines of data.yaml. Text is in quotes, as JSON has it, which is YAML too."""
        role = main_role(source)
        for name, split in _split_names(splits).items():
            yield f"{quoted(name)}: {quoted(f'{IMAGES}/{split}')}"
        yield f"task: {self.task}"
        if points:
            yield f"kpt_shape: [{points}, 3]"
            yield from _said_of_points(role)
        names = (
            role.names
            if role.names is not None
            else tuple(map(str, range(members_of(source).classes)))
        )
        yield f"nc: {len(names)}"
        yield from (
            ["names:", *(f"  - {quoted(name)}" for name in names)] if names else ["names: []"]
        )


def _said_of_points(role: Objects) -> Iterator[str]:
    """Yield what data.yaml says of keypoints; their names stand there for each class."""
    if role.flip is not None:
        yield f"flip_idx: [{', '.join(map(str, role.flip))}]"
    if role.keypoints is not None:
        yield "kpt_names:"
        for number in range(len(role.names or ())):
            yield f"  {number}: [{', '.join(map(quoted, role.keypoints))}]"


@lru_cache(maxsize=1)
def _outside(source: Source, export: Yolo) -> int:
    """Return how many objects have places outside of their image. The headers of all images with
    objects are read, once."""
    image, objects = marked_columns(source)
    role, points = main_role(source), export._points(source)
    outside = 0
    for block in source.columns((KEY, image, objects)):
        marked = objects_of(block.column(KEY), block.column(objects), role, export._members)
        for data, (key, each) in zip(block.column(image), marked, strict=True):
            if each:
                size = stored_size(data, key)
                outside += sum(
                    export._is_kept(item, points) and export._cells(item, size, points) is None
                    for item in each
                )
    return outside


def _split_names(splits: Sequence[str]) -> dict[str, str]:
    """Return what data.yaml calls each split: `val` the one for validation."""
    meant = next((split for split in VALIDATION if split in splits), None)
    return {"val" if split == meant and "val" not in splits else split: split for split in splits}


def _shares(places: Sequence[float], size: tuple[int, int]) -> list[float]:
    """Return places in pixels, x and y in turn, as shares of the size."""
    return [place / size[number % 2] for number, place in enumerate(places)]


def _number(share: float) -> str:
    """Return a share with the fewest digits, and never in the form 1e-05, which not all readers
    know."""
    text = f"{share:.{DECIMALS}f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text
