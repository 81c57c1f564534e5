"""ImageNet: the classes of its images by the numbers of WordNet, and the ground truth of the
validation images."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError
from shardctl.sources.annotations.base import AnnotationRule, Annotations, Source
from shardctl.sources.annotations.inputs import AT_ONCE, PathTable, reading, stem
from shardctl.sources.files import exists, is_folder, local_copy
from shardctl.system.files import read_bytes
from shardctl.system.locations import join, name_of, parent_of
from shardctl.system.text import counted, printable, some

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
    sources: Sequence[Source], inputs: PathTable, _rule: AnnotationRule, _scratch: Path
) -> Annotations:
    """Find the class of each image: from the ground truth, else from its folder, else from its
    own name."""
    given, digests = sources[0].path, list[bytes]()
    folder, there = given if is_folder(given) else parent_of(given), dict[str, str]()
    places: list[str] = []
    for name in (*WORDS, NUMBERED, SOLUTION, CAFFE, TRUTH):
        places += (join(folder, name), join(folder, f"data/{name}"))
        if place := next(filter(exists, places[-2:]), None):
            there[name] = place

    def lines_of(name: str) -> Iterator[tuple[int, str]]:
        with reading(there[name]):
            data = read_bytes(Path(local_copy(there[name])))
            lines = data.decode("utf-8-sig").splitlines()
        digests.append(hashlib.sha256(data).digest())
        yield from ((number, line.strip()) for number, line in enumerate(lines, 1) if line.strip())

    words = _words(printable(given), there, lines_of)
    wnids = sorted(words)
    numbers = {wnid: number for number, wnid in enumerate(wnids)}
    truth = _truth(numbers, there, lines_of)
    rows = np.arange(len(inputs))
    found: list[int | None] = []
    for start in range(0, len(inputs), AT_ONCE):
        for path in inputs.paths_at(rows[start : start + AT_ONCE]):
            *folders, name = path.split("/")
            number = truth.get(stem(name))
            if number is None:
                own = _WNID.match(name)
                known = [*reversed(folders), own.group() if own else ""]
                number = next((numbers[each] for each in known if each in numbers), None)
            found.append(number)
    missing = [row for row, number in enumerate(found) if number is None]
    if len(missing) == len(found):
        raise InputError(
            f"{printable(given)}: no image has a class of ImageNet (n01440764): a folder, a "
            f"name, or a line in a list ({some(inputs.paths_at([0]))})"
        )
    said = [
        f"{len(missing):,} of {counted(len(found), 'input')} without a class of ImageNet "
        f"({some(inputs.paths_at(missing[:3]))}): no label"
    ]
    times = Counter(words.values())  # crane is a bird and a machine
    names = (
        words[wnid] if times[words[wnid]] == 1 else f"{words[wnid]} ({wnid})" for wnid in wnids
    )
    return Annotations(
        pa.table({"label": pa.array(found, pa.int64())}),
        rows,
        (pa.field("label", pa.int64()),),
        (hashlib.sha256(b"\0".join(digests)).hexdigest(),),
        classes=tuple(names),
        notices=said if missing else (),
        places=places,
    )


LinesOf = Callable[[str], Iterator[tuple[int, str]]]
"""Returns the lines of a list that have any text, with their numbers."""


def _words(shown: str, there: dict[str, str], lines_of: LinesOf) -> dict[str, str]:
    """Return the words of each class by its WordNet number. Raises InputError."""
    name = next((name for name in (*WORDS, NUMBERED) if name in there), None)
    if name is None:
        raise InputError(
            f"{shown}: needs one of {', '.join((*WORDS, NUMBERED))}, with the names of classes"
        )
    words: dict[str, str] = {}
    for number, line in lines_of(name):
        wnid, _, rest = line.partition(" ")
        if name == NUMBERED:
            rest = rest.partition(" ")[2].replace("_", " ")
        if not _WNID.fullmatch(wnid) or not rest or wnid in words:
            raise InputError(
                f"{printable(there[name])}, line {number}: each line needs another WordNet "
                "number such as n01440764, and words"
            )
        words[wnid] = rest.strip()
    return words


def _truth(numbers: dict[str, int], there: dict[str, str], lines_of: LinesOf) -> dict[str, int]:
    """Return the class of each validation image by its name without ending, from the first list
    that is there."""
    of_list = next((name for name in (SOLUTION, CAFFE, TRUTH) if name in there), None)
    if of_list is None:
        return {}
    if of_list == TRUTH and NUMBERED not in there:
        raise InputError(
            f"{printable(there[TRUTH])}: put {NUMBERED} beside it, which names its numbers"
        )
    by_id, truth = dict[str, int](), dict[str, int]()
    for _, line in lines_of(NUMBERED) if of_list == TRUTH else ():
        wnid, own, *_ = [*line.split(), "", ""]
        if wnid in numbers:
            by_id[own] = numbers[wnid]
    for number, line in lines_of(of_list):
        if of_list == SOLUTION:
            name, _, said = line.partition(",")
            found = numbers.get(said.partition(" ")[0])
        elif of_list == CAFFE:
            path, _, place = line.rpartition(" ")
            fits = path and place.isdecimal() and int(place) < len(numbers)
            name, found = stem(name_of(path)), int(place) if fits else None
        else:
            name, found = _VALIDATION.format(number), by_id.get(line)
        if found is not None:
            truth[name] = found
        elif not line.startswith("ImageId,"):
            raise InputError(
                f"{printable(there[of_list])}, line {number}: {printable(line)} gives no image a class"
            )
    return truth
