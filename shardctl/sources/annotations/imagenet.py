"""ImageNet: the classes of its images by the numbers of WordNet, and the ground truth of the
validation images."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError
from shardctl.sources.annotations.base import AnnotationRule, Annotations, Source
from shardctl.sources.annotations.inputs import AT_ONCE, Inputs, reading, stem
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


def read(
    sources: Sequence[Source], inputs: Inputs, _rule: AnnotationRule, _scratch: Path
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
            f"{lists.shown}: no image has a class of ImageNet: a folder or a name such as "
            f"n01440764, or a line in a list ({some(inputs.paths_at([0]))})"
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
    return Annotations(table, rows, (field,), (lists.digest(),), classes=names, notices=tuple(said))


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


class _Lists:
    """The lists in a folder, or beside the one that was named."""

    def __init__(self, given: str) -> None:
        self._folder = given if is_folder(given) else parent_of(given)
        self.shown = printable(given)
        self._read: list[bytes] = []

    def digest(self) -> str:
        """Return the digest of all that was read."""
        return hashlib.sha256(b"\0".join(self._read)).hexdigest()

    def _find(self, name: str) -> str | None:
        places = [join(self._folder, name), join(self._folder, f"data/{name}")]
        return next((place for place in places if exists(place)), None)

    def _lines(self, file: str) -> Iterator[tuple[int, str]]:
        """Yield the lines of a file that have any text, with their numbers."""
        with reading(file):
            data = read_bytes(Path(local_copy(file)))
            lines = data.decode("utf-8-sig").splitlines()
        self._read.append(hashlib.sha256(data).digest())
        yield from ((number, line.strip()) for number, line in enumerate(lines, 1) if line.strip())

    def words(self) -> dict[str, str]:
        """Return the words of each class by its WordNet number. Raises InputError."""
        file = next((place for name in (*WORDS, NUMBERED) if (place := self._find(name))), None)
        if file is None:
            raise InputError(
                f"{self.shown}: needs one of the files with the names of classes: "
                f"{', '.join((*WORDS, NUMBERED))}"
            )
        words: dict[str, str] = {}
        for number, line in self._lines(file):
            wnid, _, rest = line.partition(" ")
            if name_of(file) == NUMBERED:
                rest = rest.partition(" ")[2].replace("_", " ")
            if not _WNID.fullmatch(wnid) or not rest or wnid in words:
                raise InputError(
                    f"{printable(file)}, line {number}: each line needs a WordNet number such as "
                    "n01440764, once in the file, and words"
                )
            words[wnid] = rest.strip()
        return words

    def truth(self, numbers: dict[str, int]) -> dict[str, int]:
        """Return the class of each validation image by its name without ending, from the first list
        that is there."""
        if file := self._find(SOLUTION):
            return self._classes(file, lambda _, line: _solution(line, numbers))
        if file := self._find(CAFFE):
            return self._classes(file, lambda _, line: _place(line, len(numbers)))
        file, mapping = self._find(TRUTH), self._find(NUMBERED)
        if file is None:
            return {}
        if mapping is None:
            raise InputError(
                f"{printable(file)}: its numbers are those of the development kit; put {NUMBERED} "
                f"beside it, or use {SOLUTION}"
            )
        by_id = {}
        for _, line in self._lines(mapping):
            wnid, own, *_ = [*line.split(), "", ""]
            if wnid in numbers:
                by_id[own] = numbers[wnid]
        return self._classes(file, lambda n, own: (_VALIDATION.format(n), by_id.get(own)))

    def _classes(
        self, file: str, class_of: Callable[[int, str], tuple[str, int | None]]
    ) -> dict[str, int]:
        truth: dict[str, int] = {}
        for number, line in self._lines(file):
            name, found = class_of(number, line)
            if found is not None:
                truth[name] = found
            elif not line.startswith("ImageId,"):
                raise InputError(
                    f"{printable(file)}, line {number}: {printable(line)} does not give an image a "
                    "class of the list of classes"
                )
        return truth


def _solution(line: str, numbers: dict[str, int]) -> tuple[str, int | None]:
    name, _, said = line.partition(",")
    return name, numbers.get(said.partition(" ")[0])


def _place(line: str, classes: int) -> tuple[str, int | None]:
    name, _, place = line.rpartition(" ")
    fits = name and place.isdecimal() and int(place) < classes
    return stem(name_of(name)), int(place) if fits else None
