"""The images that annotations and labels files are about: the one place where names are compared
with those of inputs."""

from __future__ import annotations

import csv
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import compress, islice, starmap
from pathlib import Path
from typing import NoReturn, TypeAlias

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError
from shardctl.format.arrays import Array, Bools, Hashes, Numbers, hash_names, owners_of
from shardctl.images.defaults import SUFFIXES
from shardctl.sources.files import SourceRoot, exists, is_folder, local_copy, resolved
from shardctl.sources.splits import may_name_a_split, roles_of, split_word
from shardctl.sources.walk import files_below, suffix_of
from shardctl.system.files import sha256_of
from shardctl.system.locations import (
    folders_above,
    follow,
    is_stored,
    name_of,
    parent_of,
    path_below,
    within,
)
from shardctl.system.permutation import evenly_spaced
from shardctl.system.text import composed, counted, printable, some

NAMES = ("classes.txt", "obj.names")
"""Files that have the names of the classes, one in a line from 0 on."""

YAML = (".yaml", ".yml")
"""Endings of files that describe a dataset of YOLO."""

AT_ONCE = 65536
"""Names that are Python objects at a time."""

ABOVE = 3
"""Folders above a source from which names may start: images/train/1.jpg is 1.jpg where images/train
is the source."""

LOOKED_AT = 3
"""Names that are looked for on the disk, to see whether they start from a folder."""

FOLDERS = {
    "labels": "images",
    "Annotations": "JPEGImages",
    "annotations": "images",
    "masks": "images",
    "captions": "images",
}
"""Folders of annotations, and of their images beside them: of Ultralytics, of the development kit
of VOC, of other tools."""

_NO_SPLITS = frozenset((*FOLDERS.values(), "dev", "eval"))
"""Folders above names and sources that tell no split: people and programs are called so, too."""

Rows = Numbers
Texts: TypeAlias = "pa.Array | pa.ChunkedArray"

Differ = Callable[[Rows, Rows], Bools]
"""Says of names and inputs, by their numbers, whether they are of different splits."""


@dataclass(frozen=True)
class PathTable:
    """The listed inputs. `table` has the `path` of each, relative to its source, and the number of
    its `root`."""

    roots: tuple[SourceRoot, ...]
    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def paths_at(self, rows: Rows | Sequence[int]) -> list[str]:
        """Return the paths of some inputs."""
        return list(self.table["path"].take(pa.array(rows, pa.int64())).to_pylist())

    @cached_property
    def by_path(self) -> Finder:
        """Finds inputs by their whole names."""
        return Finder(self, has_endings=True)

    @cached_property
    def by_stem(self) -> Finder:
        """Finds inputs by their names without the ending."""
        return Finder(self, has_endings=False)

    @cached_property
    def have_backslashes(self) -> bool:
        """Whether a backslash is part of a name of some input: elsewhere it stands between folders,
        as on Windows."""
        import pyarrow.compute as pc  # 40 ms to import, and most conversions have no annotations

        return bool(pc.any(pc.match_substring(self.table["path"], "\\")).as_py())

    def in_folder(self, folder: str) -> Bools:
        """Return which inputs are in a folder or below, (n,)."""
        import pyarrow.compute as pc  # 40 ms to import, and most conversions do not ask

        there, roots = resolved(folder), self.table["root"].to_numpy()
        found = np.zeros(len(self), bool)
        for number, base in enumerate(self.bases):
            below = "" if path_below(base, there) is not None else path_below(there, base)
            if below is not None:
                start = f"{below}/" if below else ""
                is_below = np.asarray(pc.starts_with(self.table["path"], start))
                found |= (roots == number) & is_below
        return found

    @cached_property
    def bases(self) -> list[str]:
        """The folder of each source that paths of its inputs are relative to."""
        return [root.base for root in self.roots]


def stem(path: str) -> str:
    """Return a path without the ending of its name."""
    dot = path.rfind(".")
    return path[:dot] if dot > path.rfind("/") + 1 else path


_ENDING = r"([^/])\.[^./]*$"
"""The regular expression of what `stem` takes off."""


class Finder:
    """Finds inputs by their names: docs/annotations.md has the rules. 16 bytes for each input.

    Unicode has two ways to write é, and a Mac writes the other one: names are compared in one form
    (NFC).
    """

    def __init__(self, inputs: PathTable, has_endings: bool) -> None:
        self._inputs, self._has_endings = inputs, has_endings
        given = [
            # not resolved: links stay
            root.folder if root.is_stored else os.path.abspath(root.folder)  # noqa: PTH100
            for root in inputs.roots
        ]
        self._bases = [within(base) for base in dict.fromkeys((*inputs.bases, *given))]

    def find(
        self,
        names: Texts,
        shown: str,
        files: Iterable[tuple[str, int]],
        first: Sequence[tuple[str, Texts]] = (),
        written: Texts | None = None,
    ) -> Rows:
        """Return the input of each name, -1 for none, (n,) int64. `files` are what has the names,
        each with how many.

        All names start from one folder: the first one from which some of them lead to an input.
        Those of `first` are tried before the sources and the folders above these; they have names
        of their own. Others of the names may still be inputs deeper in their folder. Where no
        folder is such a start, each name means the only input of the same last part whose folders
        do not contradict its own. No name means an input of another split than it, or the file that
        has it, says, but where one of `first` leads to it.

        Raises InputError if a name may mean several inputs, if two names mean one, and if all names
        lead to another split only. A message calls the file `shown`, and each name as in `written`
        if that is given.
        """
        bases = self._inputs.bases
        above = [folder for base in bases for folder in folders_above(base)[:ABOVE]]
        others = [(folder, names) for folder in dict.fromkeys((*bases, *above))]
        start: str | None
        for number, (start, texts) in enumerate((*first, *others)):
            rows = joined(self._exact(placed) for placed in self._placed(texts, start))
            is_told = number < len(first)
            if (rows >= 0).any() or (is_told and self._has_endings and _are_there(start, texts)):
                break
        else:
            start, texts, is_told = None, names, False
            rows = np.full(len(names), -1, np.int64)
        is_exact, place, differ = rows >= 0, 0, self._other_splits(names, files)
        for placed in self._placed(texts, start) if (rows < 0).any() else ():
            left = place + np.flatnonzero(rows[place : place + len(placed)] < 0)
            unplaced = [placed[number - place] for number in left.tolist()]
            rows[left] = self._loose(unplaced, left, start is not None, differ)
            place += len(placed)
        is_other, unsure = np.zeros(len(rows), bool), (rows >= 0) & ~(is_exact & is_told)
        for begin in range(0, len(rows), AT_ONCE):
            here = begin + np.flatnonzero(unsure[begin : begin + AT_ONCE])
            is_other[here] = differ(here, rows[here])
        if is_other.any() and (is_other == (rows >= 0)).all():
            at = int(np.argmax(is_other))
            raise InputError(
                f"{shown}: {printable(names[at].as_py())} leads only to "
                f"{printable(self._inputs.paths_at([rows[at]])[0])}, of another split by its "
                "name; rename one"
            )
        rows[is_other] = -1
        rows[~is_exact & np.isin(rows, rows[is_exact])] = -1  # another name leads to it as it is
        order = np.argsort(rows, kind="stable")
        again = np.flatnonzero((np.diff(rows[order]) == 0) & (rows[order[1:]] >= 0))
        if len(again):
            said = names if written is None else written
            one, other = (said[place].as_py() for place in order[again[0] :][:2].tolist())
            of = printable(self._inputs.paths_at(rows[order[again[:1]]])[0])
            raise InputError(f"{shown}: {_both(one, other)} are both of the input {of}; keep one")
        return rows

    def of_file(self, names: Texts, file: str, home: str = "") -> Rows:
        """Return the input of each name that a file has, as `find` does: they may start from its
        folder. Its own name tells a split, unless the folder (`home`) is given in its place."""
        first = [(resolved(parent_of(file)), names)]
        return self.find(names, printable(file), [(home or file, len(names))], first)

    def _placed(self, names: Texts, start: str | None) -> Iterator[list[str]]:
        """Yield the names, some at a time, as inputs are written, if they start from a folder: ""
        for one below no source.

        Where they start is not known if it is None: they are then as they are, but for how they are
        written.
        """
        import pyarrow.compute as pc  # 40 ms to import, and most conversions have no annotations

        heads = list[tuple[str, str]]()  # what to take off and to put before names
        if start is not None:
            origin = within(start)
            heads = [
                ("", origin[len(base) :]) if origin.startswith(base) else (base[len(origin) :], "")
                for base in self._bases
                if origin.startswith(base) or base.startswith(origin)
            ]
        for begin in range(0, len(names), AT_ONCE):
            found = pc.utf8_normalize(names.slice(begin, AT_ONCE), "NFC").to_pylist()
            together = "\0".join(["", *found])
            if "\\" in together and not self._inputs.have_backslashes:
                found = [name.replace("\\", "/") for name in found]
                together = together.replace("\\", "/")
            is_odd = any(mark in together for mark in ("./", "//", ":"))
            if is_odd:
                found = [name if is_stored(name) else posixpath.normpath(name) for name in found]
            is_odd |= "\0/" in together
            if start is None or (heads == [("", "")] and not is_odd):
                yield found
            elif is_odd:
                begin_of = lru_cache(AT_ONCE)(partial(self._begin_of, start))
                cut = ((name, name.rfind("/") + 1) for name in found)
                begun = ((begin_of(name[:at]), name[at:]) for name, at in cut)
                yield ["" if begin is None else begin + last for begin, last in begun]
            elif not any(f"\0{cut}" in together for cut, _ in heads):
                yield [""] * len(found)
            else:
                yield [
                    next((add + name[len(cut) :] for cut, add in heads if name.startswith(cut)), "")
                    for name in found
                ]

    def _begin_of(self, start: str, folder: str) -> str | None:
        """Return how names that begin with `folder`, from `start` on, begin from a source on; None
        if they lead to none."""
        is_from_root = folder[:1] == "/" or is_stored(folder)
        if folder.startswith("../"):
            folder = within(follow(start, folder))
        elif not is_from_root:
            folder = f"{within(start)}{folder}"
        bases = [base for base in self._bases if folder.startswith(base)]
        if not bases and is_from_root and "\0" not in folder:
            folder = within(resolved(folder))
            bases = [base for base in self._bases if folder.startswith(base)]
        return folder[len(bases[0]) :] if bases else None

    def _exact(self, names: list[str]) -> Rows:
        """Return the input of each name that is the whole name of one."""
        import pyarrow.compute as pc

        rows = np.full(len(names), -1, np.int64)
        there = np.flatnonzero(list(map(bool, names)))
        if not len(there):
            return rows
        wanted = pa.array(names, pa.large_string()).take(pa.array(there))
        numbers, places = _pairs(self._whole, hash_names(wanted.to_pylist()))
        is_same = np.asarray(pc.equal(self._names_at(places), wanted.take(pa.array(numbers))))
        for number in np.flatnonzero(np.bincount(numbers[is_same]) > 1).tolist():
            self._refuse_several(
                names[there[number]], places[is_same & (numbers == number)].tolist()
            )
        rows[there[numbers[is_same]]] = places[is_same]
        return rows

    def _loose(self, names: list[str], numbers: Rows, is_known: bool, differ: Differ) -> Rows:
        """Return the input of each name that only its last part fits. Of several, the one of the
        same split, or that ends with all of it, is meant. `numbers` are those of the names."""
        rows = np.full(len(names), -1, np.int64)
        parts = list(map(name_of, names))
        found: dict[int, list[tuple[int, str]]] = {}
        pairs = _pairs(self._last, hash_names(parts))
        of_pairs = (pairs[0].tolist(), pairs[1].tolist(), self._names_at(pairs[1]).to_pylist())
        for number, row, path in zip(*of_pairs, strict=True):
            if name_of(path) == parts[number] and _do_agree(names[number], path, is_known):
                found.setdefault(number, []).append((row, path))
        for number, several in found.items():
            if len(several) > 1:
                own = numbers[[number] * len(several)]
                same = ~differ(own, np.array([row for row, _ in several]))
                several = list(compress(several, same)) or several
            if len(several) > 1:
                ending = f"/{names[number]}"
                several = [each for each in several if each[1].endswith(ending)] or several
            if len(several) > 1:
                self._refuse_several(names[number], [row for row, _ in several])
            rows[number] = several[0][0]
        return rows

    def _other_splits(self, names: Texts, files: Iterable[tuple[str, int]]) -> Differ:
        """Return what says of names and inputs, by their numbers, whether they are of different
        splits."""
        told = [(resolved(parent_of(file)), name_of(file), count) for file, count in files]
        bases = [root.recorded if root.is_folder else root.base for root in self._inputs.roots]
        of_file = np.repeat(np.arange(len(told)), [count for *_, count in told])

        @lru_cache(AT_ONCE)
        def differ(file: int, root: int, name: str, path: str) -> bool:
            return _are_of_other_splits(*told[file][:2], name, bases[root], path)

        def all_differ(numbers: Rows, rows: Rows) -> Bools:
            found = self._inputs.table.take(pa.array(rows))
            folders = (
                [name.replace("\\", "/").rpartition("/")[0] for name in each.to_pylist()]
                for each in (names.take(pa.array(numbers)), found["path"])
            )
            each = zip(of_file[numbers].tolist(), found["root"].to_pylist(), *folders, strict=True)
            return np.fromiter(starmap(differ, each), bool, len(numbers))

        return all_differ

    def _refuse_several(self, name: str, rows: list[int]) -> NoReturn:
        raise InputError(
            f"the annotations name {printable(name)}, which may be "
            f"{_both(*self._inputs.paths_at(rows[:2]))}; write paths from the source on"
        )

    def _names_at(self, rows: Rows) -> pa.Array:
        return self._normal(self._inputs.table["path"].take(pa.array(rows)))

    def _normal(self, paths: Texts) -> pa.Array:
        import pyarrow.compute as pc

        whole = paths.combine_chunks() if isinstance(paths, pa.ChunkedArray) else paths
        names = whole if self._has_endings else pc.replace_substring_regex(whole, _ENDING, r"\1")
        return pc.utf8_normalize(names.cast(pa.large_string()), "NFC")

    @cached_property
    def _whole(self) -> Sorted:
        return _sorted(joined(map(hash_names, self._chunks())))

    @cached_property
    def _last(self) -> Sorted:
        return _sorted(joined(hash_names(map(name_of, names)) for names in self._chunks()))

    def _chunks(self) -> Iterator[list[str]]:
        for batch in self._inputs.table.select(["path"]).to_batches(max_chunksize=AT_ONCE):
            yield self._normal(batch.column(0)).to_pylist()


Sorted = tuple[Hashes, Rows]
"""Hashes in order, and the place of each before they were sorted."""


def _sorted(hashes: Hashes) -> Sorted:
    order = np.argsort(hashes, kind="stable")
    return hashes[order], order


def _pairs(there: Sorted, wanted: Hashes) -> tuple[Rows, Rows]:
    """Return every pair of a wanted hash, by its number, and a place that has it."""
    first, end = (np.searchsorted(there[0], wanted, side) for side in ("left", "right"))
    counts = end - first
    numbers = owners_of(counts)
    inner = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)
    return numbers, there[1][np.repeat(first, counts) + inner]


def joined(parts: Iterable[Array]) -> Array:
    """Return arrays one behind the other; no parts are no numbers."""
    found = list(parts)
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _are_there(start: str, names: Texts) -> bool:
    """Return whether some of the names lead to files from a folder on, be they inputs or not: a few
    are looked at."""
    return any(
        exists(f"{within(start)}{names[place].as_py()}")
        for place in evenly_spaced(len(names), LOOKED_AT)
    )


def _are_of_other_splits(home: str, file: str, name: str, source: str, path: str) -> bool:
    """Return whether the last word of a split of a file in `home` and the folders that it says
    differs from that of the folders of an input. Above these only the nearest folder counts, and
    what both lie in does not: there are users called dev."""
    outer, above = home.split("/"), source.split("/")
    same = len(os.path.commonprefix([outer, above]))  # noqa: RUF071 - of lists
    said, there = name.split("/"), path.split("/")
    if name[:1] == "/" or ":/" in name:
        own = len(said) - len(os.path.commonprefix([said[::-1], there[::-1]]))  # noqa: RUF071 - of lists
        said = [*_nearest(said[:own]), *said[own:]]
    word = split_word(file)
    one = roles_of([*_nearest(outer[same:]), word.word if word else "", *said])
    other = roles_of([*_nearest(above[same:]), *there])
    return bool(one and other) and one.isdisjoint(other)


def _nearest(folders: list[str]) -> list[str]:
    return [folder for folder in folders if folder not in FOLDERS and folder not in _NO_SPLITS][-1:]


def _do_agree(name: str, path: str, is_known: bool) -> bool:
    """Return whether the folders of a name and of an input are in one order, and one has only more
    of them than the other.

    Where it is known from where names start, only the input may have more.
    """
    own, others = name.split("/")[:-1], path.split("/")[:-1]
    pairs = [(own, others)] if is_known else [(own, others), (others, own)]
    return any(all(part in left for part in few) for few, left in ((a, iter(b)) for a, b in pairs))


def _both(one: str, other: str) -> str:
    """Return two names for a message, so that they differ where only their Unicode form does."""
    shown = ascii if composed(one) == composed(other) and one != other else printable
    return f"{shown(one)} and {shown(other)}"


@contextmanager
def reading(file: str) -> Iterator[None]:
    """Make what goes wrong while a file is read an InputError that names it."""
    try:
        yield
    except UnicodeDecodeError:
        raise InputError(f"{printable(file)}: not UTF-8; recode the file") from None
    except (OSError, ValueError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{printable(file)}: cannot be read ({reason})") from error


def none_among_inputs(shown: str, names: Texts) -> InputError:
    """Return what is wrong with a file whose images are all other ones."""
    example = some(names.slice(0, 3).to_pylist())
    return InputError(
        f"{shown}: no image of it is among the inputs (it names {example}); give their folder"
    )


def said_of_absent(shown: str, names: Texts, rows: Rows) -> list[str]:
    """Say how many of the images that a file names are not there."""
    absent = np.flatnonzero(rows < 0)
    example = some([names[place].as_py() for place in absent[:3].tolist()])
    of = f"{len(absent):,} of {counted(len(rows), 'image')}"
    what = f"{of} are not among the inputs, or are of another split"
    return [f"{shown}: {what} ({example}); skipped"] if len(absent) else []


Place = str | Rows
"""Where inputs of a split are: a folder of images, a file with one of their names in a line, or the
numbers of the inputs."""


@dataclass(frozen=True)
class ToldSplits:
    """What files (`shown` to a person) say of the splits: the places of each one's inputs."""

    shown: str
    places: dict[str, list[Place]]

    @property
    def lists(self) -> list[str]:
        """The files among the places."""
        places = (place for places in self.places.values() for place in places)
        return [each for each in places if isinstance(each, str) and not is_folder(each)]

    @property
    def digests(self) -> list[str]:
        """The SHA-256 of each list."""
        return [sha256_of(Path(local_copy(each))) for each in self.lists]

    def found(self, inputs: PathTable) -> tuple[dict[str, Bools], list[str], bool]:
        """Return which inputs are in each split that has some, (n,) bool, what to say of names of
        no input, and whether these are of lists: there are several of them, or there is the name of
        an image in a line.

        Splits of the same inputs are one. Raises InputError for a list that cannot be read, or a
        name that may be several.
        """
        sets: dict[str, Bools] = {}
        said, are_lists = list[str](), len(self.places) > 1
        for name, places in self.places.items():
            own = np.zeros(len(inputs), bool)
            for place in places:
                if not isinstance(place, str):
                    own[place] = True
                elif is_folder(place):
                    own |= inputs.in_folder(place)
                else:
                    rows, lost = _listed(place, inputs)
                    own[rows] = True
                    words = re.split("[ ,\t\n]", "\n".join(lost[:100]))
                    are_lists |= any(suffix_of(word) in SUFFIXES for word in words)
                    if lost:
                        said.append(
                            f"{printable(place)}: {counted(len(lost), 'name')} of no input "
                            f"({some(lost[:100])}); skipped"
                        )
            same = next((other for other, its in sets.items() if np.array_equal(its, own)), None)
            if same is not None:
                count = counted(int(own.sum()), "input")
                said.append(f"{self.shown}: {same} and {name} are the same {count}: one split")
            elif own.any():
                sets[name] = own
        return sets, said, bool(said) and are_lists


def _listed(file: str, inputs: PathTable) -> tuple[Rows, list[str]]:
    """Return the inputs that a list names, and the names of none.

    The names have the endings of images, or none of them has.
    """
    import pyarrow.compute as pc  # 40 ms to import, and most conversions have no lists

    with reading(file), open(local_copy(file), encoding="utf-8-sig", errors="replace") as opened:
        lines = filter(None, map(str.strip, opened))
        chunks = iter(lambda: list(islice(lines, AT_ONCE)), [])
        parts = [pa.array(chunk, pa.large_string()) for chunk in chunks]
    names = pc.unique(pa.chunked_array(parts, pa.large_string()))
    if not len(names):
        return np.zeros(0, np.int64), []
    has_endings = suffix_of(name_of(names[0].as_py())) in SUFFIXES
    finder = inputs.by_path if has_endings else inputs.by_stem
    rows = finder.of_file(names, file, within(parent_of(file)))
    return rows[rows >= 0], names.filter(pa.array(rows < 0)).to_pylist()


def split_of_list(file: str) -> str | None:
    """Return the split whose inputs a file seems to list, as its name says: train.txt, val2017.txt;
    None for another file."""
    name = name_of(file)
    word = split_word(stem(name)) if name.endswith(".txt") and may_name_a_split(name) else None
    return word.word if word and word.alone else None


def lists_in(folder: str) -> list[str]:
    """Return the files of a folder that may list the inputs of splits, in order."""
    opened = (file.opened for files in files_below(folder) for file in files)
    return [each for each in opened if split_of_list(each) is not None]


def told_by_lists(files: Iterable[str]) -> ToldSplits | None:
    """Return what lists say, those of one split together; trainval.txt repeats train.txt and
    val.txt."""
    places: dict[str, list[Place]] = {}
    for file in files:
        if (name := split_of_list(file)) is not None:
            places.setdefault(name, []).append(file)
    if {"train", "val"} <= set(places):
        places.pop("trainval", None)
    shown = some([printable(each) for own in places.values() for each in own])
    return ToldSplits(shown, places) if places else None
