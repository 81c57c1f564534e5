"""Which split every record is in: by folders, by sources, by a column of the labels files, or drawn
by a hash of its key."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.errors import InputError, UsageError
from shardctl.format.arrays import Bytes, Hashes, Numbers, hash_names, numbers_of
from shardctl.format.names import Json
from shardctl.making.notices import notice
from shardctl.making.plan.listing import Group, LabelRule, Listing
from shardctl.sources.export_description import Description, described
from shardctl.sources.label_table import LABEL_COLUMN, SPLIT_COLUMN
from shardctl.sources.splits import (
    GroupRule,
    are_sets_of_one,
    is_split_name,
    named_as_splits,
    rank,
    split_word,
)
from shardctl.sources.walked import CHUNK_ROWS
from shardctl.system.permutation import mix64
from shardctl.system.text import counted, some

MODES = ("auto", "folder", "source", "column", "lists", "none")
MOST_SPLITS = 255

TRAINING = 0
"""The row of splits.ROLES that has training data."""


def check_split_name(name: object) -> None:
    """Raise UsageError for what cannot be the name of a split."""
    if not isinstance(name, str) or not is_split_name(name):
        raise UsageError(notice("split-name", name=name))


@dataclass(frozen=True)
class SplitRule:
    """How inputs are divided: one of MODES, or shares such as train=0.9,val=0.1 drawn by a hash of
    the key."""

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
                raise UsageError(notice("split-form", text=text, modes=", ".join(MODES))) from None
            check_split_name(name)
        if len(named := dict(shares)) < len(shares):
            raise UsageError(notice("split-named-twice", text=text))
        if len(shares) > MOST_SPLITS:
            raise UsageError(notice("too-many-shares", count=len(shares), most=MOST_SPLITS))
        given = named.values()
        if not all(0 < share <= 1 for share in given) or abs(sum(given) - 1) > 1e-6:
            raise UsageError(notice("sum-of-shares", text=text))
        return cls("shares", tuple(shares))

    def __str__(self) -> str:
        return ",".join(f"{name}={share!r}" for name, share in self.shares) or self.mode


@dataclass(frozen=True)
class PlanRules:
    """How inputs are labelled and divided: what a manifest has as `settings`, without the sizes of
    shards.

    `shuffle` is a seed, None for listing order; `seed` is the one of the recipe, for drawn splits.
    `by_key` says that records have keys of their own, which decide the splits that are drawn; what
    is of one `group` (the recipe's) is in one of these.
    """

    split: SplitRule
    labels: LabelRule
    shuffle: int | None
    seed: int
    by_key: bool
    group: GroupRule | None

    def record(self) -> Json:
        """Return the settings as a manifest has them."""
        record = {
            "split": str(self.split),
            "labels": self.labels.record(),
            "shuffle": self.shuffle,
            "lenient_labels": self.labels.lenient,
        }
        if self.by_key and self.split.shares:
            record["drawn_by"] = "key"
        record |= self.labels.annotation_rule.record()
        if self.labels.classes is not None:
            record["classes"] = xxhash.xxh3_128_hexdigest("\n".join(self.labels.classes).encode())
        return {**record, "drop_columns": list(self.labels.drop)} if self.labels.drop else record


@dataclass(frozen=True)
class Splitting:
    """The names of the splits, and the split of every file (by number): `of_file` is (n,) uint8.

    `by` is where they come from: folder, source, column, lists, shares, none, or declared by files
    that describe others. Where the records of a file may be in different splits, `of_file` is None, and
    `draw` decides for every record.
    """

    names: tuple[str, ...]
    of_file: Bytes | None
    by: str
    draw: Draw | None = None


@dataclass(frozen=True)
class Draw:
    """Draws the split of a record from a hash of its key, so that it stays where it is when others
    come or go.

    `edges` are the upper ends of the shares of all splits but the last. `by_key` says that values
    of a field of the records are drawn by; else it is keys that are made of the path of a file and
    the number of the record in it. Where there is a `group`, all of one are drawn together.
    """

    edges: tuple[float, ...]
    seed: int
    by_key: bool = False
    group: GroupRule | None = None

    @classmethod
    def of(
        cls, rule: SplitRule, seed: int, by_key: bool = False, group: GroupRule | None = None
    ) -> Draw:
        """Return what draws splits by the shares of a rule."""
        edges = tuple(np.cumsum([share for _, share in rule.shares])[:-1].tolist())
        return cls(edges, seed, by_key or (group is not None and group.field is not None), group)

    def to_json(self) -> Json:
        """Return everything as plain data."""
        record: Json = {"edges": self.edges, "seed": self.seed}
        if self.by_key:
            record["by_key"] = True
        return {**record, "group": str(self.group)} if self.group else record

    @classmethod
    def from_json(cls, record: Json) -> Draw:
        """Build what `to_json` gave. Raises KeyError, TypeError, ValueError."""
        group = GroupRule.parse(str(record["group"])) if "group" in record else None
        return cls(
            tuple(map(float, record["edges"])),
            int(record["seed"]),
            bool(record.get("by_key", False)),
            group,
        )

    def of_files(self, hashes: Hashes) -> Bytes:
        """Return the split of files that are one record each, given the hashes of their paths. (n,)
        uint8."""
        return self._place(self._seeded(hashes))

    def of_keys(self, keys: Iterable[str]) -> Bytes:
        """Return the split of records by their own keys or groups, (n,) uint8: that of a file of
        this name."""
        return self.of_files(hash_names(self.group.of(keys) if self.group else keys))

    def of_records(self, path_hash: int, numbers: Numbers) -> Bytes:
        """Return the split of records of one file, given the hash of its path and their numbers in
        it. (n,) uint8."""
        base = self._seeded(np.array([path_hash], np.uint64))
        return self._place(mix64(base ^ mix64(numbers.astype(np.uint64))))

    def _seeded(self, hashes: Hashes) -> Hashes:
        return mix64(hashes ^ mix64(np.array([self.seed], np.uint64)))

    def _place(self, drawn: Hashes) -> Bytes:
        return np.searchsorted(
            np.array(self.edges), drawn.astype(np.float64) / 2.0**64, side="right"
        ).astype(np.uint8)


def split_files(listing: Listing, rules: PlanRules) -> Splitting:
    """Divide the files.

    A column of labels files that decides the splits is taken out of the listing: samples do not
    have it. Raises InputError if the files do not have what the rule asks for, or it is not clear
    what they have.
    """
    rule, group = rules.split, rules.group
    by = rule.mode if rule.mode != "auto" else _found(listing)
    if by != "column" and has_column(listing):
        shown = listing.side.shown if listing.side else ""
        listing.note("column-split-kept", files=shown, rule=rule)
    if rule.shares:
        with suppress(InputError):
            other = _found(listing)
            if other != "none":
                found = some(_divided(listing, other, _common_folder(listing)).names, 10)
                what = f"{_why(listing, other)} are splits ({found})"
                listing.warnings.append(notice("splits-divided", what=what, rule=rule))
        draw = Draw.of(rule, rules.seed, rules.by_key and not listing.whole, group)
        shares = tuple(name for name, _ in rule.shares)
        if not listing.whole:
            return Splitting(shares, None, "shares", draw)
        hashes = listing.hashes if group is None else _hashes_of_groups(listing, group)
        return Splitting(shares, draw.of_files(hashes), "shares")
    splitting = _divided(listing, by, _common_folder(listing) if rule.mode == "auto" else "")
    if by == "column" and listing.side is not None:
        listing.side = listing.side.without(SPLIT_COLUMN)
    if rule.mode == "auto" and by != "none":
        names = some(splitting.names, 10)
        listing.note("splits-found", what=_why(listing, by), names=names)
    return splitting


def _divided(listing: Listing, by: str, base: str) -> Splitting:
    """Divide the files by what names splits; `base` is the folder that has those of splits. Raises
    InputError."""
    if by == "none":
        return Splitting(("train",), np.zeros(len(listing), np.uint8), by)
    if by == "declared":
        return _as_declared(listing)
    if by in ("column", "lists"):
        shown, names, of_input = _told(listing, by)
        without = np.flatnonzero(of_input < 0)
        if len(without):
            raise InputError(
                notice("no-split", told=shown, inputs=counted_inputs(listing, without))
            )
        return _splitting(names, pa.array(of_input), by)
    if by == "source":
        return _splitting(listing.root_names, numbers_of(listing.table["root"]), by)
    tops = [_top(group, base) for group in listing.groups]
    if "" in tops:
        raise InputError(notice("no-folder-of-split"))
    # files of lines are often parts of one: train-00000-of-00004.jsonl is in train
    words = [
        split_word(top) if g.folder == base else None
        for top, g in zip(tops, listing.groups, strict=True)
    ]
    tops = [word.word if word else top for word, top in zip(words, tops, strict=True)]
    return _splitting(tops, listing.group, "folder")


def _why(listing: Listing, by: str) -> str:
    """Return what names the splits, for a message."""
    return {
        "folder": "the top-level folders or files",
        "source": "the sources",
        "column": "the values of the column split",
        "lists": f"the sets of {listing.told.shown}" if listing.told else "",
        "declared": "the sets of the files beside the shards",
    }[by]


def has_column(listing: Listing) -> bool:
    """Return whether labels files have a column of splits."""
    return listing.side is not None and SPLIT_COLUMN in listing.side.columns.column_names


def _found(listing: Listing) -> str:
    """Return what names splits: column, source, folder, lists, declared or none. Raises InputError if
    unclear."""
    # files of TFDS are in one folder, those of an export may be in several
    if all(group.is_split for group in listing.groups) and (
        len({group.folder for group in listing.groups}) == 1 or export_of(listing) is not None
    ):
        return "declared"
    base = _common_folder(listing)
    tops = {_top(group, base) for group in listing.groups}
    by_top = _named(tops - {""}, [group for group in listing.groups if group.folder == base])
    if (
        listing.whole
        and by_top != tops - {""}
        and not are_sets_of_one(by_top)
        and not any(map(_is_alone, by_top))
    ):
        # classes, of which some have such a word in their name: bullet_train, test_tube, car
        by_top = set()
    if (
        by_top == tops
        and not any(root.is_folder for root in listing.roots)
        and len({_role(name) for name in tops}) < 2
    ):
        # the sources are these very files: their name decides no more than that of a folder would
        by_top = set()
    sources = listing.root_names if all(root.is_folder for root in listing.roots) else []
    by_source = named_as_splits(sources)
    told = placed = ""
    if has_column(listing):
        told = "column"
    elif listing.told and _of_lists(listing)[1]:
        told = "lists"
    if by_top == tops:
        placed = "folder"
    elif len(sources) > 1 and by_source == set(sources):
        placed = "source"
    if told and placed:
        _refuse_contradiction(listing, _divided(listing, placed, base), told)
    if told == "column" or (told and not placed):
        return told
    if by_top:
        _refuse_others(listing, by_top, tops)
    if len(sources) > 1 and by_source:
        if by_top:
            held = some(_sorted(by_top))
            raise InputError(notice("sources-and-folders", sources=some(sources), held=held))
        others = [name for name in sources if name not in by_source]
        if others:
            named = some(_sorted(by_source))
            raise InputError(notice("one-source-of-split", named=named, others=some(others)))
        return "source"
    if by_top:
        return "folder"
    _refuse_deeper(listing)
    if listing.told and not listing.told_sets[0] and listing.told_sets[2]:
        raise InputError(notice("no-line-of-list", lists=listing.told.shown))
    return "none"


def _common_folder(listing: Listing) -> str:
    """Return the folder below the source that has all files of many records, as a dataset of
    Hugging Face has its own in data/, and TFDS in NAME/VERSION/; "" where there is none, or where
    it is named as a split.
    """
    if listing.whole:
        return ""
    of_all = os.path.commonpath([f"/{group.folder}" for group in listing.groups])
    parts = of_all.strip("/").split("/")
    named = named_as_splits(parts)
    return "/".join(takewhile(lambda part: part not in named, parts))


def _top(group: Group, base: str) -> str:
    """Return the folder, or the file of many records, right below the folder `base` that a group is
    in, "" for none."""
    return group.folder[len(base) :].lstrip("/").partition("/")[0] or group.stem


def _named(tops: set[str], beside: Iterable[Group]) -> set[str]:
    """Return those that are named as splits. Files that are all named as training data name none:
    there is one split anyway.

    `beside` are the groups that are in no folder below that of all.
    """
    named, files = named_as_splits(tops), {group.stem for group in beside}
    if named == tops and named <= files and set(map(_role, named)) == {TRAINING}:
        return set()
    return named


def _refuse_others(listing: Listing, named: set[str], tops: set[str]) -> None:
    """Raise InputError if there are other folders or files beside the splits."""
    others = _sorted(tops - named)
    if not others:
        return
    roots = some([root.text for root in listing.roots])
    splits = notice(
        "named-as-split" if len(named) == 1 else "named-as-splits", names=some(_sorted(named))
    )
    if others == [""]:
        base = _common_folder(listing)
        stray = [number for number, group in enumerate(listing.groups) if not _top(group, base)]
        rows = np.flatnonzero(np.isin(listing.group, stray))
        inputs, are = counted_inputs(listing, rows), "is" if len(rows) == 1 else "are"
        raise InputError(
            notice("beside-splits", sources=roots, splits=splits, inputs=inputs, are=are)
        )
    names = some([other for other in others if other])
    raise InputError(notice("folders-beside-splits", sources=roots, splits=splits, others=names))


def _refuse_deeper(listing: Listing) -> None:
    """Raise InputError if folders further down are named as splits: they would be mixed, or taken
    for classes."""
    deeper: dict[str, str] = {}
    for group in listing.groups:
        parts = [part for part in (*group.folder.split("/"), group.stem) if part]
        deeper |= {part: "/".join(parts[:depth]) for depth, part in enumerate(parts) if depth}
    named = named_as_splits(deeper)
    words = [word for word in map(split_word, named) if word and word.alone]
    if len({word.role for word in words}) > 1:
        example = " and ".join(f"{deeper[name]}/{name}" for name in _sorted(named)[:2])
        raise InputError(notice("splits-further-down", example=example))


def look_inside(listing: Listing, rule: SplitRule, splitting: Splitting) -> None:
    """Raise InputError if folders within the files of a split, which are members of tars, are named
    as several splits.

    Warn of them where shares divide the members all the same.
    """
    within: dict[int, set[str]] = {}
    for file, names in listing.inside.items() if rule.mode in ("auto", "shares") else ():
        split = 0 if splitting.of_file is None else int(splitting.of_file[file])
        within.setdefault(split, set()).update(names)
    for named in map(named_as_splits, within.values()):
        if len(set(map(_role, named))) > 1 and (
            any(map(_is_alone, named)) or are_sets_of_one(named)
        ):
            shown = some(_sorted(named))
            if not rule.shares:
                raise InputError(notice("splits-in-tars", names=shown))
            listing.warnings.append(notice("splits-in-tars-divided", names=shown, rule=rule))


def _refuse_contradiction(listing: Listing, placed: Splitting, by: str) -> None:
    """Raise InputError if inputs are in the folder or source of one split, and a labels file or
    list puts them into another."""
    shown, names, of_input = _told(listing, by)
    ours = list(map(_role, placed.names))
    differ = np.array([[_role(one) != other for other in ours] for one in [*names, ""]])
    rows = np.flatnonzero(differ[of_input, _numbers(placed)] & (of_input >= 0))
    if len(rows):
        raise InputError(
            notice(
                "split-and-place-differ",
                told=shown,
                inputs=counted(len(rows), "input"),
                placed=placed.by,
                names=some(listing.paths_at(rows[:100])),
                by=by,
            )
        )


def export_of(listing: Listing) -> Description | None:
    """Return the description of the export that the first file is of, None if it is of none."""
    return described(listing.opened(*listing.rows_at([0])))


def _as_declared(listing: Listing) -> Splitting:
    """Divide the files as other files say (declared_splits): in the order of an export's splits,
    else in the usual one."""
    splitting = _splitting([group.stem for group in listing.groups], listing.group, "declared")
    export = export_of(listing)
    if export is None or not set(splitting.names) <= set(export.splits):
        return splitting
    names = tuple(name for name in export.splits if name in splitting.names)
    places = np.array([names.index(name) for name in splitting.names], np.uint8)
    return replace(splitting, names=names, of_file=places[_numbers(splitting)])


_Told = tuple[str, list[str], Numbers]
"""The splits that a column or lists give: what these are to a person, names, and of each input the
number of its name, -1 for none, (n,)."""


def _told(listing: Listing, by: str) -> _Told:
    """Return what a column split or lists say. Raises InputError if there are none, or they name an
    input twice."""
    if by == "lists":
        return _of_lists(listing)
    side = listing.side
    if side is None or not has_column(listing):
        raise InputError(notice("no-column-split"))
    column = side.columns[SPLIT_COLUMN]
    if not pa.types.is_string(column.type):
        raise InputError(notice("column-split-of-type", files=side.shown, type=column.type))
    import pyarrow.compute as pc  # 40 ms to import, and most conversions have no labels file

    assert listing.side_rows is not None, "found with the labels files"
    coded = pc.dictionary_encode(
        pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
    ).combine_chunks()
    coded = coded.chunk(0) if isinstance(coded, pa.ChunkedArray) else coded
    rows = pa.array(listing.side_rows, mask=listing.side_rows < 0)
    numbers = coded.indices.take(rows).fill_null(-1).to_numpy().astype(np.int64)
    return f"{side.shown}: the column split", coded.dictionary.to_pylist(), numbers


def _of_lists(listing: Listing) -> _Told:
    """Return what annotations or lists say. Raises InputError if there are none, or they name an
    input twice."""
    if listing.told is None:
        raise InputError(notice("no-lists"))
    sets, said, _ = listing.told_sets
    number = np.full(len(listing), -1, np.int64)
    for place, (name, own) in enumerate(sets.items()):
        twice = np.flatnonzero(own & (number >= 0))
        if len(twice):
            other = list(sets)[number[twice[0]]]
            raise InputError(
                notice(
                    "in-two-splits",
                    told=listing.told.shown,
                    inputs=counted_inputs(listing, twice),
                    one=other,
                    other=name,
                )
            )
        number[own] = place
    listing.notices += [each for each in said if each not in listing.notices]
    return listing.told.shown, list(sets), number


def _splitting(names: list[str], number: Numbers, by: str) -> Splitting:
    """Return the splits that have inputs, in order. `names` may have one several times; `number`
    counts along it, (n,)."""
    used = np.bincount(number, minlength=len(names)) > 0
    present = _sorted({name for name, has_inputs in zip(names, used, strict=True) if has_inputs})
    bad = [name for name in present if not is_split_name(name)]
    if bad:
        raise InputError(notice("no-names-of-splits", by=by, names=some(bad)))
    if len(present) > MOST_SPLITS:
        raise InputError(notice("too-many-splits", by=by, count=len(present), most=MOST_SPLITS))
    places = {name: place for place, name in enumerate(present)}
    of_name = np.array([places.get(name, 0) for name in names], np.uint8)
    return Splitting(tuple(present), of_name[number], by)


def _hashes_of_groups(listing: Listing, group: GroupRule) -> Hashes:
    """Return a hash of the group of each file. Raises InputError where there is no such column, and
    for files in no group."""
    named, side, rows = group.field, listing.side, listing.side_rows
    columns = side.columns.column_names if side else []
    if named is not None and named not in columns:
        raise InputError(notice("no-column-of-groups", name=named, columns=some(columns) or "none"))
    values = side.columns[named] if side is not None and named is not None else None
    if values is not None:
        names = side.classes if side is not None and named == LABEL_COLUMN else None
        values = values.cast(pa.string()) if names is None else pa.array(names).take(values)
    found, without = [np.zeros(0, np.uint64)], list[int]()
    for first in range(0, len(listing), CHUNK_ROWS):
        here = np.arange(first, min(first + CHUNK_ROWS, len(listing)))
        if values is not None and rows is not None:
            groups = values.take(pa.array(rows[here], mask=rows[here] < 0)).to_pylist()
        else:
            groups = group.of(listing.paths_at(here))
        without += [first + place for place, each in enumerate(groups) if not each]
        found.append(hash_names(each or "" for each in groups))
    if without:
        inputs = counted_inputs(listing, np.array(without))
        raise InputError(notice("in-no-group", group=group, inputs=inputs))
    return np.concatenate(found)


def counted_inputs(listing: Listing, rows: Numbers) -> str:
    """Return how many inputs these are, with the paths of a few, for a message."""
    return f"{counted(len(rows), 'input')} ({some(listing.paths_at(rows[:100]))})"


def _role(name: str) -> int | None:
    """Return the role of the split word in a name, None if it has none."""
    word = split_word(name) if name else None
    return None if word is None else word.role


def _is_alone(name: str) -> bool:
    word = split_word(name)
    return word is not None and word.alone


def _numbers(splitting: Splitting) -> Bytes:
    assert splitting.of_file is not None, "only shares divide the records of a file"
    return splitting.of_file


def _sorted(names: Iterable[str]) -> list[str]:
    return sorted(names, key=rank)
