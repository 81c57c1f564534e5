"""ImageNet: the classes of its images by the numbers of WordNet, and the ground truth of the
validation images."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError
from shardctl.sources.annotations.base import AnnotationFormat, AnnotationRule, Annotations, Source
from shardctl.sources.annotations.inputs import AT_ONCE, Inputs, stem
from shardctl.sources.files import exists, is_folder, local_copy
from shardctl.sources.label_table import some
from shardctl.system.files import read_bytes
from shardctl.system.locations import join, name_of, parent_of
from shardctl.system.text import counted, printable

WORDS = ("LOC_synset_mapping.txt", "synset_words.txt")
"""A line for each class: its number in WordNet, and words."""

NUMBERED = "map_clsloc.txt"
"""A line for each class: its number in WordNet, its number in the development kit, and a word."""

SOLUTION, TRUTH, CAFFE = "LOC_val_solution.csv", "ILSVRC2012_validation_ground_truth.txt", "val.txt"
"""The classes of the validation images: by WordNet, by the numbers of the development kit, by
places in the sorted list."""

_WNID = re.compile(r"n\d{8}")
_VALIDATION = "ILSVRC2012_val_{:08d}"


class Imagenet(AnnotationFormat):
    """The lists of classes that come with ImageNet. They give `label`; its names are in the order
    of the WordNet numbers."""

    name: ClassVar[str] = "imagenet"

    def read(
        self, sources: Sequence[Source], inputs: Inputs, rule: AnnotationRule, scratch: Path
    ) -> Annotations:
        """Find the class of each image: from the ground truth, else from its folder, else from its
        own name."""
        lists = _Lists(sources[0].path)
        words = lists.words()
        wnids = sorted(words)
        numbers = {wnid: number for number, wnid in enumerate(wnids)}
        truth = lists.truth(numbers)
        rows = np.arange(len(inputs))
        found: list[int | None] = []
        for start in range(0, len(inputs), AT_ONCE):
            found += [
                _class_of(path, numbers, truth)
                for path in inputs.paths_at(rows[start : start + AT_ONCE])
            ]
        missing = [row for row, number in enumerate(found) if number is None]
        if len(missing) == len(found):
            raise InputError(
                f"{lists.shown}: no image has a class of ImageNet. An image needs a folder such as "
                "n01440764, a name that"
                " begins so, or a line in a list of validation images "
                f"({some(inputs.paths_at([0]))})"
            )
        said = []
        if missing:
            example = some(inputs.paths_at(missing[:3]))
            said.append(
                f"{len(missing):,} of {counted(len(found), 'input')} without a class of ImageNet "
                f"({example}): no label"
            )
        field = pa.field("label", pa.int64())
        table = pa.table({"label": pa.array(found, pa.int64())})
        names = _unique([words[wnid] for wnid in wnids], wnids)
        return Annotations(
            table, rows, (field,), (lists.digest(),), classes=names, notices=tuple(said)
        )


def _class_of(path: str, numbers: dict[str, int], truth: dict[str, int]) -> int | None:
    *folders, name = path.split("/")
    number = truth.get(stem(name))
    for folder in reversed(folders) if number is None else ():
        if folder in numbers:
            return numbers[folder]
    own = _WNID.match(name)
    return numbers.get(own.group()) if number is None and own else number


def _unique(words: Sequence[str], wnids: Sequence[str]) -> tuple[str, ...]:
    """Return names of which no two are the same: crane is a bird and a machine."""
    twice = {word for word in words if words.count(word) > 1}
    return tuple(
        f"{word} ({wnid})" if word in twice else word
        for word, wnid in zip(words, wnids, strict=True)
    )


@dataclass
class _Lists:
    """The lists in a folder, or beside the one that was named."""

    given: str

    def __post_init__(self) -> None:
        self._folder = self.given if is_folder(self.given) else parent_of(self.given)
        self._read: list[bytes] = []

    @property
    def shown(self) -> str:
        """The path or the URL for a message."""
        return printable(self.given)

    def digest(self) -> str:
        """Return the digest of all that was read."""
        return hashlib.sha256(
            b"\0".join(hashlib.sha256(data).digest() for data in self._read)
        ).hexdigest()

    def _find(self, name: str) -> str | None:
        places = [join(self._folder, name), join(self._folder, f"data/{name}")]
        return next((place for place in places if exists(place)), None)

    def _lines(self, file: str) -> list[str]:
        try:
            data = read_bytes(Path(local_copy(file)))
            self._read.append(data)
            return data.decode("utf-8-sig").splitlines()
        except OSError as error:
            raise InputError(f"{printable(file)}: cannot be read ({error.strerror})") from error
        except UnicodeDecodeError as error:
            raise InputError(
                f"{printable(file)}: not UTF-8 at byte {error.start}; recode the file"
            ) from None

    def words(self) -> dict[str, str]:
        """Return the words of each class by its WordNet number. Raises InputError."""
        file = next((place for name in (*WORDS, NUMBERED) if (place := self._find(name))), None)
        if file is None:
            raise InputError(
                f"{self.shown}: needs one of the files with the names of classes: "
                f"{', '.join((*WORDS, NUMBERED))}"
            )
        words: dict[str, str] = {}
        for number, line in enumerate(self._lines(file), 1):
            if not line.strip():
                continue
            wnid, _, rest = line.strip().partition(" ")
            if name_of(file) == NUMBERED:
                rest = rest.partition(" ")[2].replace("_", " ")
            if not _WNID.fullmatch(wnid) or not rest or wnid in words:
                raise InputError(
                    f"{printable(file)}, line {number}: each line needs a WordNet number such as "
                    "n01440764, once in the file,"
                    " and words"
                )
            words[wnid] = rest.strip()
        return words

    def truth(self, numbers: dict[str, int]) -> dict[str, int]:
        """Return the class of each validation image by its name without ending, from the first list
        that is there."""
        if file := self._find(SOLUTION):
            return self._solution(file, numbers)
        if file := self._find(CAFFE):
            return self._places(file, len(numbers))
        if file := self._find(TRUTH):
            return self._development(file, numbers)
        return {}

    def _solution(self, file: str, numbers: dict[str, int]) -> dict[str, int]:
        truth: dict[str, int] = {}
        for number, row in enumerate(csv.reader(self._lines(file)), 1):
            if number == 1 and row[:1] == ["ImageId"]:
                continue
            wnid = row[1].split(" ")[0] if len(row) == 2 else ""
            if wnid not in numbers:
                raise InputError(
                    f"{printable(file)}, line {number}: needs the name of an image, and a class of "
                    "the list of classes"
                )
            truth[row[0]] = numbers[wnid]
        return truth

    def _places(self, file: str, classes: int) -> dict[str, int]:
        truth: dict[str, int] = {}
        for number, line in enumerate(self._lines(file), 1):
            name, _, place = line.strip().rpartition(" ")
            if not name or not place.isdecimal() or int(place) >= classes:
                raise InputError(
                    f"{printable(file)}, line {number}: a file name and a number below {classes} "
                    "are needed"
                )
            truth[stem(name.rpartition("/")[2])] = int(place)
        return truth

    def _development(self, file: str, numbers: dict[str, int]) -> dict[str, int]:
        mapping = self._find(NUMBERED)
        if mapping is None:
            raise InputError(
                f"{printable(file)}: its numbers come from meta.mat of the development kit, and "
                "are not places in the sorted"
                f" list of classes; put {NUMBERED} beside it, or use {SOLUTION}"
            )
        by_id = {}
        for line in self._lines(mapping):
            wnid, own, *_ = [*line.split(), "", ""]
            if wnid in numbers and own.isdecimal():
                by_id[int(own)] = numbers[wnid]
        truth: dict[str, int] = {}
        for number, line in enumerate(self._lines(file), 1):
            if not line.strip().isdecimal() or int(line) not in by_id:
                raise InputError(
                    f"{printable(file)}, line {number}: {printable(line)} is not a class of "
                    f"{name_of(mapping)}"
                )
            truth[_VALIDATION.format(number)] = by_id[int(line)]
        return truth
