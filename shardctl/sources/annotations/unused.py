"""Files that look like annotations or labels of the inputs, and that nothing uses: what `--labels`
would take them.

Four rules tell them, by names and by the beginnings of a few files: this is for a warning before
the work begins.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.sources.annotations.inputs import stem
from shardctl.sources.annotations.per_image import NAMES
from shardctl.sources.annotations.yolo import YAML
from shardctl.sources.files import SourceRoot, begin_of, stretch_of
from shardctl.sources.label_table import hash_names
from shardctl.sources.splits import named_as_splits
from shardctl.sources.walk import FoundFile
from shardctl.system.locations import common, join, parent_of
from shardctl.system.text import printable

ONE_EACH = (".txt", ".xml")
TABLES, PARQUET = (".csv", ".tsv", ".jsonl"), ".parquet"
SUFFIXES = frozenset((".json", ".json.gz", PARQUET, *TABLES, *ONE_EACH, *YAML))

MOST_PLACES = 32
"""Folders right below a source, for each ending, whose files are looked at."""

KEPT = 8
"""The first files of each of them are looked at."""

BEGIN_BYTES = 64 << 10

MOST_FOLDERS = 64
"""Folders of images in which a name is looked for."""

OF_IMAGES = (".jpg", ".jpeg", ".png", ".JPG", ".JPEG", ".PNG", ".webp", ".bmp", ".tif", ".tiff")
"""How names of images end, which are looked for in texts."""

_NAME = re.compile(rf"[^\s\"',;|=#<>]+(?:{'|'.join(map(re.escape, OF_IMAGES))})")
_OF_LABELS = re.compile(
    rb"(?i)\b(labels?|class(es)?|categor(y|ies)|captions?|text|target|species|breed|bbox|objects?|xmin)\b"
)
_OF_MASKS = frozenset(
    ("masks", "labels", "annotations", "segmentations", "SegmentationClass", "gtFine")
)


@dataclass
class Unused:
    """Takes files that are no inputs, and keeps the first ones of each place and ending. An empty
    file tells nothing."""

    places: dict[tuple[int, str, str], list[FoundFile]] = field(default_factory=dict)

    def add(self, file: FoundFile) -> None:
        """Keep a file if it is among the first ones of its place."""
        if (
            file.suffix in SUFFIXES
            and file.fault is None
            and file.size
            and file.path.rpartition("/")[2] not in NAMES
        ):
            place = (
                file.root,
                file.path.partition("/")[0] if "/" in file.path else "",
                file.suffix,
            )
            if place in self.places or len(self.places) < MOST_PLACES:
                kept = self.places.setdefault(place, [])
                if len(kept) < KEPT:
                    kept.append(file)


@dataclass(frozen=True)
class Images:
    """The inputs: `folders` are those that have images. `table` has the `path`, the `root` and the
    `group` of each image, its place in `folders`; `hashes` are those of the paths, (n,) uint64."""

    roots: Sequence[SourceRoot]
    folders: Sequence[str]
    table: pa.Table
    hashes: npt.NDArray[np.uint64]

    @cached_property
    def _sorted(self) -> npt.NDArray[np.uint64]:
        return np.sort(self.hashes)

    @cached_property
    def have_classes(self) -> bool:
        """Whether the folders give the images their classes, as `--labels auto` does where there
        are no other labels."""
        names = sorted({folder.rpartition("/")[2] for folder in self.folders} - {""})
        return len(names) > 1 and len(named_as_splits(names)) < len(names)

    def have(self, name: str, folders: Sequence[str], endings: Sequence[str] = ("",)) -> bool:
        """Return whether an image is called so in one of some folders."""
        names = [f"{folder}/{name}{ending}".lstrip("/") for folder in folders for ending in endings]
        wanted = hash_names(names)
        places = np.searchsorted(self._sorted, wanted)
        return bool((self._sorted[np.minimum(places, len(self._sorted) - 1)] == wanted).any())


def warnings_of_unused(unused: Unused, images: Images) -> list[str]:
    """Say which files look like annotations or labels of the images, and the option that takes
    them."""
    found = dict(each for files in unused.places.values() for each in _looked_at(files, images))
    if any(_is_yaml(option) for option in found):  # it names the folders of its labels
        found = {
            option: said
            for option, said in found.items()
            if not option.startswith("yolo:") or _is_yaml(option)
        }
    return [*found.values(), *_said_of_masks(images)]


def _is_yaml(option: str) -> bool:
    return option.endswith(YAML)


def _looked_at(files: Sequence[FoundFile], images: Images) -> Iterator[tuple[str, str]]:
    """Yield the options for the files of one place, each with a sentence."""
    suffix, folders = files[0].suffix, ["", *images.folders[:MOST_FOLDERS]]
    if suffix == PARQUET:  # nested_records.py looks at these
        return
    if suffix in ONE_EACH:
        named = [
            file
            for file in files
            if images.have(stem(file.path.rpartition("/")[2]), [file.folder, *folders], OF_IMAGES)
        ]
        begin = _ends_of(named[0]) if named else b""
        form = next(
            (
                form
                for form, (ending, pattern, _) in _EACH.items()
                if ending == suffix and pattern.match(begin)
            ),
            None,
        )
        if form is not None:
            yield _said(
                common([parent_of(file.opened) for file in named]),
                f"{form}:",
                f"has what looks like {_EACH[form][2]}",
            )
            return
    for file in files:
        ends = _ends_of(file)
        if suffix in YAML:
            if re.search(rb"(?m)^names\s*:", ends) and re.search(
                rb"(?m)^(train|val|path)\s*:", ends
            ):
                yield _said(file.opened, "yolo:", "looks like the data.yaml of YOLO labels")
        elif suffix == ".json" and _OF_COCO.search(ends) and _MEMBERS_OF_COCO.search(ends):
            yield _said(file.opened, "coco:", "looks like COCO annotations")
        elif (name := _NAME.search(ends.decode("utf-8", "replace"))) is not None:
            is_told = not images.have_classes or _OF_LABELS.search(ends)
            if is_told and images.have(name[0].removeprefix("./"), [file.folder, *folders]):
                if suffix not in TABLES:  # there may be one for each image
                    yield file.opened, f"{printable(file.opened)} names images{_TO_WRITE}"
                    return
                yield _said(file.opened, "", "names images")


_EACH = {
    "voc": (".xml", re.compile(rb"(?s).*<annotation\b"), "VOC annotations"),
    "yolo": (".txt", re.compile(rb"\d+( -?[\d.]+){4}"), "YOLO labels"),
    "captions": (".txt", re.compile(rb"\D{12}"), "captions of images"),
}
"""The formats with a file for each image: its ending and how it begins."""

_TO_WRITE = (
    ", and nothing uses it: write it as COCO, or as a CSV file with the columns file_name and label"
)
_OF_COCO = re.compile(rb'(?s)\A\s*\{.*("annotations"\s*:\s*\[\s*\{|"image_id")')
_MEMBERS_OF_COCO = re.compile(rb'"(category_id|caption)"|"categories"\s*:\s*\[')


def _said_of_masks(images: Images) -> Iterator[str]:
    """Yield what is said of folders that are called as those of masks, with the name of an image of
    another folder in each."""
    others = [folder for folder in images.folders if _OF_MASKS.isdisjoint(folder.split("/"))][
        :MOST_FOLDERS
    ]
    for number, folder in enumerate(images.folders):
        parts = folder.split("/")
        place = next((place for place, part in enumerate(parts) if part in _OF_MASKS), None)
        if place is None or not others:
            continue
        import pyarrow.compute as pc  # 40 ms that few conversions need

        row = pc.index(images.table["group"], number).as_py()
        name = images.table["path"][row].as_py().rpartition("/")[2]
        if name.lower().endswith(".png") and images.have(stem(name), others, OF_IMAGES):
            root = images.roots[images.table["root"][row].as_py()].text
            what = "looks like masks of other images, each of which becomes a sample of its own"
            yield _said(join(root, "/".join(parts[: place + 1])), "masks:", what)[1]


def _said(path: str, form: str, what: str) -> tuple[str, str]:
    option = f"{form}{path}"
    return (
        option,
        f"{printable(path)} {what}, and nothing uses it: --labels {shlex.quote(printable(option))}",
    )


def _ends_of(file: FoundFile) -> bytes:
    """Return the first bytes of a file, and the last ones of a larger one."""
    try:
        begin = begin_of(file.opened, BEGIN_BYTES)
        return (
            begin
            if file.size <= BEGIN_BYTES
            else begin + stretch_of(file.opened, file.size - BEGIN_BYTES, BEGIN_BYTES)
        )
    except (OSError, Rejection):
        return b""
