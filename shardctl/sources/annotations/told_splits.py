"""Splits that files beside the images tell of: data.yaml, COCO files of several sets, lists such as
train.txt and test.txt."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import InputError
from shardctl.images.defaults import SUFFIXES
from shardctl.sources.annotations.inputs import AT_ONCE, Inputs, stem
from shardctl.sources.files import SourceRoot, is_folder, local_copy, resolved
from shardctl.sources.label_table import some
from shardctl.sources.splits import may_name_a_split, split_word
from shardctl.sources.walk import suffix_of, walk
from shardctl.system.files import sha256_of
from shardctl.system.locations import name_of, parent_of, within
from shardctl.system.text import counted, printable

Place = str | npt.NDArray[np.int64]
"""Where inputs of a split are: a folder of images, a file with one of their names in a line, or the
numbers of the inputs."""


@dataclass(frozen=True)
class ToldSplits:
    """What files (`shown` to a person) say of the splits: the places of each one's inputs."""

    shown: str
    places: dict[str, list[Place]]

    @property
    def digests(self) -> list[str]:
        """The SHA-256 of each list."""
        places = (place for places in self.places.values() for place in places)
        return [
            sha256_of(Path(local_copy(each)))
            for each in places
            if isinstance(each, str) and not is_folder(each)
        ]

    def found(self, inputs: Inputs) -> tuple[dict[str, npt.NDArray[np.bool_]], list[str], bool]:
        """Return which inputs are in each split that has some, (n,) bool, what to say of names of
        no input, and whether these are of lists: there are several of them, or there is the name of
        an image in a line.

        Splits of the same inputs are one. Raises InputError for a list that cannot be read, or a
        name that may be several.
        """
        sets: dict[str, npt.NDArray[np.bool_]] = {}
        said, are_lists = [], len(self.places) > 1
        for name, places in self.places.items():
            own = np.zeros(len(inputs), bool)
            for place in places:
                if not isinstance(place, str):
                    own[place] = True
                elif is_folder(place):
                    own |= inputs.in_folder(place)
                else:
                    rows, lost, few = _listed(place, inputs)
                    own[rows] = True
                    if lost:
                        are_lists |= any(
                            suffix_of(part) in SUFFIXES
                            for each in few
                            for part in re.split("[ ,\t]", each)
                        )
                        said.append(
                            f"{printable(place)}: {counted(lost, 'name')} of no input "
                            f"({some(few)}); skipped"
                        )
            same = next((other for other, its in sets.items() if np.array_equal(its, own)), None)
            if same is not None:
                said.append(
                    f"{self.shown}: {same} and {name} are the same "
                    f"{counted(int(own.sum()), 'input')}: one split"
                )
            elif own.any():
                sets[name] = own
        return sets, said, bool(said) and are_lists


def _listed(file: str, inputs: Inputs) -> tuple[npt.NDArray[np.int64], int, list[str]]:
    """Return the inputs that a list names, the number of names of none, and a few of these.

    The names have the endings of images, or none of them has.
    """
    import pyarrow.compute as pc  # 40 ms to import, and most conversions have no lists

    try:
        with open(local_copy(file), encoding="utf-8-sig", errors="replace") as opened:
            lines = filter(None, map(str.strip, opened))
            chunks = [
                pa.array(chunk, pa.large_string())
                for chunk in iter(lambda: list(islice(lines, AT_ONCE)), [])
            ]
    except OSError as error:
        raise InputError(
            f"{printable(file)}: cannot be read ({error.strerror or error})"
        ) from error
    names = pc.unique(pa.chunked_array(chunks, pa.large_string()))
    if not len(names):
        return np.zeros(0, np.int64), 0, []
    finder = inputs.by_path if suffix_of(name_of(names[0].as_py())) in SUFFIXES else inputs.by_stem
    above = parent_of(file)
    rows = finder.find(
        names, printable(file), [(within(above), len(names))], [(resolved(above), names)]
    )
    absent = np.flatnonzero(rows < 0)
    return rows[rows >= 0], len(absent), names.take(pa.array(absent[:100])).to_pylist()


def split_of_list(file: str) -> str | None:
    """Return the split whose inputs a file seems to list, as its name says: train.txt, val2017.txt;
    None for another file."""
    name = name_of(file)
    word = split_word(stem(name)) if name.endswith(".txt") and may_name_a_split(name) else None
    return word.word if word and word.alone else None


def lists_in(folder: str) -> list[str]:
    """Return the files of a folder that may list the inputs of splits, in order."""
    found = walk([SourceRoot(folder)], lambda _: None) if is_folder(folder) else iter(())
    return [file.opened for file in found if split_of_list(file.opened) is not None]


def told_by_lists(files: Iterable[str]) -> ToldSplits | None:
    """Return what lists say, those of one split together; trainval.txt repeats train.txt and
    val.txt."""
    places: dict[str, list[Place]] = {}
    for file in files:
        if (name := split_of_list(file)) is not None:
            places.setdefault(name, []).append(file)
    if {"train", "val"} <= set(places):
        places.pop("trainval", None)
    shown = some([printable(str(each)) for own in places.values() for each in own])
    return ToldSplits(shown, places) if places else None
