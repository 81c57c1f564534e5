"""Which split every record is in: by folders, by sources, by a column of the labels files, or drawn by a hash of its key."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.build.plan.listing import Group, Listing
from shardctl.errors import InputError, UsageError
from shardctl.loader.order import mix64
from shardctl.sources.export_description import Description, described
from shardctl.sources.label_table import SPLIT_COLUMN, hash_names, some
from shardctl.sources.splits import (
    are_sets_of_one,
    is_split_name,
    may_name_a_split,
    named_as_splits,
    rank,
    split_word,
    that_may_name_a_split,
)
from shardctl.system.dataclass import dataclass
from shardctl.system.sequences import evenly_spaced
from shardctl.system.text import counted

_NAME_RULE = "the name of a split is made of letters, digits, _ and ."

MODES = ("auto", "folder", "source", "column", "none")
MOST_SPLITS = 255

TRAINING = 0
SETS = ("training", "validation", "test")
"""What the roles of splits.ROLES are called in sentences."""

AMBIGUOUS = ("dev", "devel", "development", "eval", "evaluation", "validate")
"""Words that name a set only where they are the last one or a word of sets comes after them: dev_log and eval_scores name
something else."""

LOOKED_AT = 20_000
"""How many names of files are looked at, where each file is one record."""


@dataclass(frozen=True)
class SplitRule:
    """How inputs are divided: one of MODES, or shares such as train=0.9,val=0.1 drawn by a hash of the key."""

    mode: str
    shares: tuple[tuple[str, float], ...] = ()

    @classmethod
    def parse(cls, text: str) -> SplitRule:
        """Read what `--split` says. Raises UsageError."""
        if text in MODES:
            return cls(text)
        shares = []
        for part in text.split(","):
            name, _, share = part.strip().partition("=")
            try:
                shares.append((name, float(share)))
            except ValueError:
                raise UsageError(
                    f"split {text!r} is not of the form train=0.9,val=0.1, and not one of {', '.join(MODES)}"
                ) from None
            if not is_split_name(name):
                raise UsageError(f"split name {name!r} must be made of letters, digits, _ and .")
        if len({name for name, _ in shares}) < len(shares):
            raise UsageError(f"split {text!r} names a split twice")
        if any(not 0 < share <= 1 for _, share in shares) or abs(sum(share for _, share in shares) - 1) > 1e-6:
            raise UsageError(f"split {text!r}: the shares must be over 0 and add up to 1")
        return cls("shares", tuple(shares))

    def __str__(self) -> str:
        return ",".join(f"{name}={share!r}" for name, share in self.shares) if self.shares else self.mode


@dataclass(frozen=True)
class Splitting:
    """The names of the splits, and the split of every file (by number): `of_file` is (n,) uint8.

    `by` is where they come from: folder, source, column, shares, none, or declared by files that describe others. Where the
    records of a file may be in different splits, `of_file` is None, and `draw` decides for every record.
    """

    names: tuple[str, ...]
    of_file: npt.NDArray[np.uint8] | None
    by: str
    draw: Draw | None = None


@dataclass(frozen=True)
class Draw:
    """Draws the split of a record from a hash of its key, so that it stays where it is when others come or go.

    `edges` are the upper ends of the shares of all splits but the last. `by_key` says that keys are values of a field of the
    records; else they are made of the path of a file and the number of the record in it.
    """

    edges: tuple[float, ...]
    seed: int
    by_key: bool = False

    @classmethod
    def of(cls, rule: SplitRule, seed: int, by_key: bool = False) -> Draw:
        """Return what draws splits by the shares of a rule."""
        return cls(tuple(np.cumsum([share for _, share in rule.shares])[:-1].tolist()), seed, by_key)

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {"edges": self.edges, "seed": self.seed, **({"by_key": True} if self.by_key else {})}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Draw:
        """Build what `to_json` gave. Raises KeyError, TypeError, ValueError."""
        return cls(tuple(map(float, record["edges"])), int(record["seed"]), bool(record.get("by_key", False)))

    def of_files(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
        """Return the split of files that are one record each, given the hashes of their paths. (n,) uint8."""
        return self._place(self._seeded(hashes))

    def of_keys(self, keys: Iterable[str]) -> npt.NDArray[np.uint8]:
        """Return the split of records by their own keys, (n,) uint8: that of a file of this name."""
        return self.of_files(hash_names(keys))

    def of_records(self, path_hash: int, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Return the split of records of one file, given the hash of its path and their numbers in it. (n,) uint8."""
        base = self._seeded(np.array([path_hash], np.uint64))
        return self._place(mix64(base ^ mix64(numbers.astype(np.uint64))))

    def _seeded(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        return mix64(hashes ^ mix64(np.array([self.seed], np.uint64)))

    def _place(self, drawn: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
        return np.searchsorted(np.array(self.edges), drawn.astype(np.float64) / 2.0**64, side="right").astype(np.uint8)


def split_files(listing: Listing, rule: SplitRule, seed: int, by_key: bool = False) -> Splitting:
    """Divide the files. `by_key` says that the records have keys of their own.

    A column of labels files that decides the splits is taken out of the listing: samples do not have it. Raises InputError if
    the files do not have what the rule asks for, or it is not clear what they have.
    """
    column = listing.side is not None and SPLIT_COLUMN in listing.side.columns.column_names
    by = _by(listing, rule, column)
    if column and by != "column":
        listing.notices.append(f"{_files(listing)}: the column split is kept as a column; --split {rule} decides the splits")
    if by == "shares":
        return _by_shares(listing, Draw.of(rule, seed, by_key and not listing.whole), rule)
    if by == "none":
        return Splitting(("train",), np.zeros(len(listing), np.uint8), by)
    if by == "declared":
        splitting = _as_declared(listing)
    elif by == "column":
        splitting = _by_column(listing)
        assert listing.side is not None, "it has the column"
        listing.side = listing.side.without(SPLIT_COLUMN)
    elif by == "source":
        splitting = _splitting(listing.root_names, listing.table["root"], by)
    else:
        splitting = _by_folder(listing, _common_folder(listing) if rule.mode == "auto" else "")
    if rule.mode == "auto":
        what = {
            "folder": "the top-level folders or files are the splits",
            "source": "the sources are the splits",
            "column": "the values of the column split are the splits",
            "declared": "the splits are those that the files beside the shards say",
        }[by]
        listing.notices.append(f"{what}: {some(splitting.names, 10)} (--split none makes one split of all inputs)")
    return splitting


def _by(listing: Listing, rule: SplitRule, column: bool) -> str:
    """Return what names splits, which is looked for once. Raises InputError if that is not clear."""
    if rule.mode != "auto":
        return rule.mode
    listing.split_by = listing.split_by or _found(listing, column)
    return listing.split_by


def _found(listing: Listing, column: bool) -> str:
    """Return what names splits: column, source, folder or none. Raises InputError if that is not clear."""
    if all(group.is_split for group in listing.groups) and _is_one_dataset(listing):
        return "declared"
    base = _common_folder(listing)
    tops = {_top(group, base) for group in listing.groups}
    by_top = _named(tops - {""}, [group for group in listing.groups if group.folder == base])
    if listing.whole and by_top != tops - {""} and not are_sets_of_one(by_top) and not any(map(_is_alone, by_top)):
        by_top = set()  # classes, of which some have such a word in their name: bullet_train, test_tube, car
    if by_top == tops and not any(root.is_folder for root in listing.roots) and len({_role(name) for name in tops}) < 2:
        by_top = set()  # the sources are these very files: their name decides no more than that of a folder would
    sources = listing.root_names if all(root.is_folder for root in listing.roots) else []
    by_source = named_as_splits(sources)
    if column:
        _refuse_contradiction(listing, base, by_top == tops)
        return "column"
    if by_top:
        _refuse_others(listing, by_top, tops)
    if len(sources) > 1 and by_source:
        if by_top:
            raise InputError(
                f"the sources ({some(sources)}) and the files or folders in them ({some(_sorted(by_top))}) are both named as"
                " splits; choose one: --split source or --split folder"
            )
        others = [name for name in sources if name not in by_source]
        if others:
            raise InputError(
                f"of the sources {some(_sorted(by_source))} is named as a split, but {some(others)} is not. Use --split source"
                " to make each source a split, or --split none for only one split"
            )
        return "source"
    if by_top:
        return "folder"
    _refuse_deeper(listing)
    return "none"


def _common_folder(listing: Listing) -> str:
    """Return the folder below the source that has all files of many records, as a dataset of Hugging Face has its own in data/,
    and TFDS in NAME/VERSION/; "" where there is none, or where it is named as a split.
    """
    if listing.whole:
        return ""
    parts = _folder_of_all(listing).split("/")
    named = named_as_splits(parts)
    return "/".join(takewhile(lambda part: part not in named, parts))


def _folder_of_all(listing: Listing) -> str:
    return os.path.commonpath([f"/{group.folder}" for group in listing.groups]).strip("/")


def _top(group: Group, base: str) -> str:
    """Return the folder, or the file of many records, right below the folder `base` that a group is in, "" for none."""
    return group.folder[len(base) :].lstrip("/").partition("/")[0] or group.stem


def _named(tops: set[str], beside: Iterable[Group]) -> set[str]:
    """Return those that are named as splits. Files that are all named as training data name none: there is one split anyway.

    `beside` are the groups that are in no folder below that of all.
    """
    named = named_as_splits(tops)
    files = {group.stem for group in beside}
    return set() if named == tops and named <= files and {_role(name) for name in named} == {TRAINING} else named


def _refuse_others(listing: Listing, named: set[str], tops: set[str]) -> None:
    """Raise InputError if there are other folders or files beside the splits."""
    others = _sorted(tops - named)
    if not others:
        return
    roots = some([root.text for root in listing.roots])
    splits = f"{some(_sorted(named))} {'is named as a split' if len(named) == 1 else 'are named as splits'}"
    if others == [""]:
        base = _common_folder(listing)
        stray = [number for number, group in enumerate(listing.groups) if not _top(group, base)]
        rows = np.flatnonzero(np.isin(listing.table["group"].to_numpy(), stray))
        lies = f"{counted(len(rows), 'input')} ({some(listing.paths_at(rows[:100]))})"
        raise InputError(
            f"{roots}: {splits}, but {lies} {'is' if len(rows) == 1 else 'are'} in no folder. Move such files into the folder"
            " of a split or out of the source, or use --split none for only one split"
        )
    raise InputError(
        f"{roots}: {splits}, but these beside them are not: {some([other for other in others if other])}. Use --split folder to"
        " make each of them a split, --split none for only one split, or move the other folders away"
    )


def _refuse_deeper(listing: Listing) -> None:
    """Raise InputError if folders further down are named as splits: they would be mixed, or taken for classes."""
    deeper: dict[str, str] = {}
    for group in listing.groups:
        parts = [*(group.folder.split("/") if group.folder else []), *([group.stem] if group.stem else [])]
        deeper |= {part: "/".join(parts[:depth]) for depth, part in enumerate(parts) if depth}
    named = named_as_splits(deeper)
    words = [word for word in map(split_word, named) if word and word.alone]
    if len({word.role for word in words}) > 1:
        example = " and ".join(f"{deeper[name]}/{name}" for name in _sorted(named)[:2])
        raise InputError(
            f"folders or files further down are named as splits ({example}), but splits must be right below a source. Give the"
            " folder that contains them as the source, or use --split none"
        )


def _refuse_contradiction(listing: Listing, base: str, by_top: bool) -> None:
    """Raise InputError if inputs are in one split's folder and the labels file puts them into another."""
    if not by_top:
        return
    column, folder = _by_column(listing), _by_folder(listing, base)
    roles = [[getattr(split_word(name), "role", None) for name in splitting.names] for splitting in (column, folder)]
    differ = np.array([[one != other for other in roles[1]] for one in roles[0]])
    rows = np.flatnonzero(differ[_numbers(column), _numbers(folder)])
    if len(rows):
        raise InputError(
            f"{_files(listing)}: the column split puts {counted(len(rows), 'input')} into another split than the folder that"
            f" it is in ({some(listing.paths_at(rows[:100]))}); say which is right: --split column or --split folder"
        )


def _by_folder(listing: Listing, base: str) -> Splitting:
    tops = [_split_name(_top(group, base), group.folder == base) for group in listing.groups]
    if "" in tops:
        raise InputError("--split folder: some inputs are in no folder that could name their split")
    return _splitting(tops, listing.table["group"], "folder")


def export_of(listing: Listing) -> Description | None:
    """Return the description of the export that the first file is of, None if it is of none."""
    return described(listing.opened(listing.table.slice(0, 1).to_pylist()[0]))


def _is_one_dataset(listing: Listing) -> bool:
    """Return whether files are of one dataset: those of TFDS are in one folder, those of an export may be in several."""
    return len({group.folder for group in listing.groups}) == 1 or export_of(listing) is not None


def _as_declared(listing: Listing) -> Splitting:
    """Divide the files as other files say (declared_split): in the order of an export's splits, else in the usual one."""
    splitting = _splitting([group.stem for group in listing.groups], listing.table["group"], "declared")
    export = export_of(listing)
    if export is None or not set(splitting.names) <= set(export.splits):
        return splitting
    names = tuple(name for name in export.splits if name in splitting.names)
    places = np.array([names.index(name) for name in splitting.names], np.uint8)
    return replace(splitting, names=names, of_file=places[_numbers(splitting)])


def _split_name(top: str, of_file: bool) -> str:
    """Return the name of a split. Files of lines are often parts of one: train-00000-of-00004.jsonl is in train."""
    word = split_word(top) if of_file else None
    return word.word if word else top


def _by_column(listing: Listing) -> Splitting:
    side = listing.side
    if side is None or SPLIT_COLUMN not in side.columns.column_names:
        raise InputError("--split column: there is no labels file with a column called split")
    column = side.columns[SPLIT_COLUMN]
    if not pa.types.is_string(column.type):
        raise InputError(
            f"{side.shown}: the column split holds {column.type}, not names of splits; --split none keeps it as a column"
        )
    import pyarrow.compute as pc  # 40 ms to import, and most conversions have no labels file

    assert listing.side_rows is not None, "found with the labels files"
    coded = pc.dictionary_encode(pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)).combine_chunks()
    coded = coded.chunk(0) if isinstance(coded, pa.ChunkedArray) else coded
    rows = pa.array(listing.side_rows, mask=listing.side_rows < 0)
    numbers = coded.indices.take(rows)
    if numbers.null_count:
        without = np.flatnonzero(np.asarray(numbers.is_null()))
        raise InputError(
            f"{side.shown}: the column split has no value for {counted(len(without), 'input')}"
            f" ({some(listing.paths_at(without[:100]))}); add it, or use --split none or --split train=0.9,val=0.1"
        )
    return _splitting(coded.dictionary.to_pylist(), numbers, "column")


def _splitting(names: list[str], number: pa.Array | pa.ChunkedArray, by: str) -> Splitting:
    """Return the splits that have inputs, in order. `names` may have one several times; `number` counts along it, (n,)."""
    used = np.bincount(number.to_numpy(), minlength=len(names)) > 0
    present = _sorted({name for name, has_inputs in zip(names, used, strict=True) if has_inputs})
    bad = [name for name in present if not is_split_name(name)]
    if bad:
        raise InputError(f"--split {by}: {some(bad)} cannot name a split: {_NAME_RULE}; rename, or use --split none")
    if len(present) > MOST_SPLITS:
        raise InputError(f"--split {by}: {len(present):,} are too many for splits; there can be {MOST_SPLITS:,}")
    places = {name: place for place, name in enumerate(present)}
    return Splitting(tuple(present), np.array([places.get(name, 0) for name in names], np.uint8)[number.to_numpy()], by)


def _by_shares(listing: Listing, draw: Draw, rule: SplitRule) -> Splitting:
    names = tuple(name for name, _ in rule.shares)
    return Splitting(names, draw.of_files(listing.hashes) if listing.whole else None, "shares", draw)


# --- what looks like a validation or test set, and becomes part of another split ---


def warn_of_mixed(listing: Listing, rule: SplitRule) -> list[str]:
    """Warn of inputs that are named as a validation or test set, and go into another split, or are divided by shares.

    There is no warning if `--split` names the rule by a word, nor for inputs that `split_files` refuses.
    """
    by, column = "", listing.side is not None and SPLIT_COLUMN in listing.side.columns.column_names
    if rule.mode in ("auto", "shares"):
        with suppress(InputError):
            by = _by(listing, rule, column)
    if by not in ("none", "folder", "shares"):
        return []
    base, split = _common_folder(listing), "" if by == "shares" else "train"
    named = [number for number, group in enumerate(listing.groups) if may_name_a_split(f"{group.folder}/{group.stem}")]
    of_all = _folder_of_all(listing) if named else ""
    found: dict[tuple[int, str, str], list[str | int]] = {}
    for number in named:
        group = listing.groups[number]
        if by == "folder":
            split = _split_name(_top(group, base), group.folder == base)
        for name, role, option in _names_of_sets(listing, number, group, of_all):
            if role != _role(split):
                found.setdefault((role, split, option), []).append(name)
    if by != "folder":
        for root, name in zip(listing.roots, listing.root_names, strict=True):
            if root.is_folder and (role := _role_of_set(name, True)):
                found.setdefault((role, split, "--split source"), []).append(root.text)
        for role, path in _sets_of_files(listing).items():
            found.setdefault((role, split, "put the files of each set into a folder of its own (train/, test/)"), []).append(
                path
            )
    warnings = [_mixed(listing, names, *what, rule) for what, names in sorted(found.items(), key=lambda each: each[0])]
    return [*warnings, *(_mixed_column(listing, rule) if column else [])]


def _mixed_column(listing: Listing, rule: SplitRule) -> list[str]:
    """Warn of a column `split` that names a validation or test set, where shares divide the inputs all the same."""
    named: list[str] = []
    with suppress(InputError):
        named = [name for name in _by_column(listing).names if _role_of_set(name, True)]
    if not named:
        return []
    return [
        f"{_files(listing)}: the column split says which inputs are in {some(named)}, but --split {rule} divides all of them."
        " To keep them apart: --split column"
    ]


def _mixed(listing: Listing, names: list[str | int], role: int, split: str, option: str, rule: SplitRule) -> str:
    """Return the warning on these names. A number stands for the file of this group."""
    names = list(dict.fromkeys(names))
    one = len(names) == 1
    shown = [_path_in(listing, name) if isinstance(name, int) else name for name in names[:3]]
    is_set = f"{some([*shown, *map(str, names[3:])])} {'looks' if one else 'look'} like a {SETS[role]} set"
    goes = f'{"goes" if one else "go"} into the split "{split}"'
    divided = f"{'is' if one else 'are'} divided into {' and '.join(name for name, _ in rule.shares)}"
    return f"{is_set}, but {goes if split else divided}. To keep {'it' if one else 'them'} apart: {option}"


def _path_in(listing: Listing, group: int) -> str:
    """Return the path of the first file of a group."""
    return listing.paths_at(np.flatnonzero(listing.table["group"].to_numpy() == group)[:1])[0]


def _names_of_sets(listing: Listing, number: int, group: Group, of_all: str) -> Iterator[tuple[str | int, int, str]]:
    """Yield each name in the path of a group that is that of a validation or test set, with its role and how to keep it apart.

    A file is given by the number of its group. `of_all` is the folder that has all files.
    """
    parts = group.folder.split("/") if group.folder else []
    for depth, name in enumerate([*parts, group.stem]):
        role = _role_of_set(name, depth == len(parts) or not listing.whole)
        if not role and listing.whole and not depth:  # a folder of images right in the source, which may be a class
            role = _role_of_named_set(name)
        if not role:
            continue
        above = "/".join(parts[:depth])
        shown = number if depth == len(parts) else f"{'/'.join(parts[: depth + 1])}/"
        if group.is_split:
            option = "leave out --split"
        elif not above:
            option = "--split folder"
        elif len(listing.roots) == 1 and f"{of_all}/".startswith(f"{above}/"):
            option = f"convert {listing.roots[0].text}/{above}, with --split folder"
        else:
            option = "convert it alone, or move it"
        yield shown, role, option


def _sets_of_files(listing: Listing) -> dict[int, str]:
    """Return a file of each validation and test set among files that are one record each, by their roles.

    Only where names tell several sets apart (train.txt, test.txt): alone they may mean anything. Of very many files some
    from all over are looked at.
    """
    if not listing.whole:
        return {}
    roles: dict[int, str] = {}
    looked_at = listing.paths_at(np.array(evenly_spaced(len(listing), LOOKED_AT), np.int64))
    for path in that_may_name_a_split(looked_at):
        word = split_word(path.rpartition("/")[2].partition(".")[0])
        if word is not None and word.alone:
            roles.setdefault(word.role, path)
    return {role: path for role, path in sorted(roles.items()) if role != TRAINING} if len(roles) > 1 else {}


def _role(name: str) -> int | None:
    """Return the role of the split word in a name, None if it has none."""
    word = split_word(name) if name else None
    return None if word is None else word.role


def _role_of_set(name: str, contained: bool) -> int:
    """Return the role of a name of a validation or test set, 0 for another name.

    A word of several counts if it may be `contained` in others (imdb_test), and seldom means something else there (dev_log).
    """
    word = split_word(name) if may_name_a_split(name) else None
    if word is None or not (word.alone or (contained and (word.of_set or word.word not in AMBIGUOUS))):
        return TRAINING
    return word.role


def _role_of_named_set(name: str) -> int:
    """Return the role of a name that says that it is one of a validation or test set (Test_Images), 0 for another name."""
    word = split_word(name) if may_name_a_split(name) else None
    return TRAINING if word is None or not word.of_set else word.role


def _is_alone(name: str) -> bool:
    word = split_word(name)
    return word is not None and word.alone


def _numbers(splitting: Splitting) -> npt.NDArray[np.uint8]:
    assert splitting.of_file is not None, "only shares divide the records of a file"
    return splitting.of_file


def _sorted(names: Iterable[str]) -> list[str]:
    return sorted(names, key=rank)


def _files(listing: Listing) -> str:
    return listing.side.shown if listing.side else ""
