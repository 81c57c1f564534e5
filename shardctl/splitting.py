"""Which split every record is in: by folders, by sources, by a column of the labels files, or drawn by a hash of its key."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import InputError, UsageError
from shardctl.listing import Group, Listing
from shardctl.order import mix64
from shardctl.sources.exported import Description, described
from shardctl.sources.labels import SPLIT_COLUMN, some
from shardctl.sources.splits import is_split_name, named_as_splits, rank, split_word
from shardctl.storage import counted

_NAME_RULE = "the name of a split is made of letters, digits, _ and ."

MODES = ("auto", "folder", "source", "column", "none")
MOST_SPLITS = 255


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

    `edges` are the upper ends of the shares of all splits but the last.
    """

    edges: tuple[float, ...]
    seed: int

    @classmethod
    def of(cls, rule: SplitRule, seed: int) -> Draw:
        """Return what draws splits by the shares of a rule."""
        return cls(tuple(np.cumsum([share for _, share in rule.shares])[:-1].tolist()), seed)

    def of_files(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
        """Return the split of files that are one record each, given the hashes of their paths. (n,) uint8."""
        return self._place(self._seeded(hashes))

    def of_records(self, path_hash: int, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Return the split of records of one file, given the hash of its path and their numbers in it. (n,) uint8."""
        base = self._seeded(np.array([path_hash], np.uint64))
        return self._place(mix64(base ^ mix64(numbers.astype(np.uint64))))

    def _seeded(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        return mix64(hashes ^ mix64(np.array([self.seed], np.uint64)))

    def _place(self, drawn: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
        return np.searchsorted(np.array(self.edges), drawn.astype(np.float64) / 2.0**64, side="right").astype(np.uint8)


def split_files(listing: Listing, rule: SplitRule, seed: int) -> Splitting:
    """Divide the files. Raises InputError if they do not have what the rule asks for, or it is not clear what they have."""
    column = listing.side is not None and SPLIT_COLUMN in listing.side.columns.column_names
    by = _found(listing, column) if rule.mode == "auto" else rule.mode
    if column and by != "column":
        listing.notices.append(f"{_files(listing)}: the column split is kept as a column; --split {rule} decides the splits")
    if by == "shares":
        return _by_shares(listing, rule, seed)
    if by == "none":
        return Splitting(("train",), np.zeros(len(listing), np.uint8), by)
    if by == "declared":
        splitting = _as_declared(listing)
    elif by == "column":
        splitting = _by_column(listing)
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


def _found(listing: Listing, column: bool) -> str:
    """Return what names splits: column, source, folder or none. Raises InputError if that is not clear."""
    if all(group.is_split for group in listing.groups) and _is_one_dataset(listing):
        return "declared"
    base = _common_folder(listing)
    tops = {_top(group, base) for group in listing.groups}
    by_top = _named(tops - {""}, [group for group in listing.groups if group.folder == base])
    sources = listing.root_names if all(root.is_dir() for root in listing.roots) else []
    by_source = named_as_splits(sources)
    if column:
        _refuse_contradiction(listing, base, by_top == tops)
        return "column"
    if by_top:
        _refuse_others(listing, by_top, tops)
    if len(sources) > 1 and by_source:
        if by_top:
            raise InputError(
                f"the sources ({some(sources)}) and what is in them ({some(_sorted(by_top))}) are both named as splits;"
                " say which of them are: --split source or --split folder"
            )
        others = [name for name in sources if name not in by_source]
        if others:
            raise InputError(
                f"of the sources {some(_sorted(by_source))} is named as a split, and {some(others)} is not; use"
                " --split source to make each source a split, or --split none for one split of all"
            )
        return "source"
    if by_top:
        return "folder"
    _refuse_deeper(listing)
    option, lone = ("source", by_source) if by_source else ("folder", named_as_splits(tops))
    if any(_split_name(name, True) != "train" for name in lone):
        listing.notices.append(
            f"{some(_sorted(lone))} is the name of a split, and its inputs become the split train; --split {option} names it so"
        )
    return "none"


def _common_folder(listing: Listing) -> str:
    """Return the folder below the source that has all files of many records, as a dataset of Hugging Face has its own in data/,
    and TFDS in NAME/VERSION/; "" where there is none, or where it is named as a split.
    """
    if listing.whole:
        return ""
    common = os.path.commonpath([f"/{group.folder}" for group in listing.groups]).strip("/")
    parts = common.split("/")
    named = named_as_splits(parts)
    return "/".join(takewhile(lambda part: part not in named, parts))


def _top(group: Group, base: str) -> str:
    """Return the folder, or the file of many records, right below the folder `base` that a group is in, "" for none."""
    return group.folder[len(base) :].lstrip("/").partition("/")[0] or group.stem


def _named(tops: set[str], beside: Iterable[Group]) -> set[str]:
    """Return those that are named as splits. A file of lines alone names none: it may as well be all there is.

    `beside` are the groups that are in no folder below that of all.
    """
    named = named_as_splits(tops)
    files = {group.stem for group in beside}
    return set() if named <= files and len({_split_name(name, True) for name in named}) < 2 and named == tops else named


def _refuse_others(listing: Listing, named: set[str], tops: set[str]) -> None:
    """Raise InputError if there are other folders or files beside the splits."""
    others = _sorted(tops - named)
    if not others:
        return
    roots = some([str(root) for root in listing.roots])
    splits = f"{some(_sorted(named))} {'is named as a split' if len(named) == 1 else 'are named as splits'}"
    if others == [""]:
        base = _common_folder(listing)
        stray = [number for number, group in enumerate(listing.groups) if not _top(group, base)]
        rows = np.flatnonzero(np.isin(listing.table["group"].to_numpy(), stray))
        lies = f"{counted(len(rows), 'input')} ({some(listing.paths_at(rows[:100]))})"
        raise InputError(
            f"{roots}: {splits}, but {lies} {'is' if len(rows) == 1 else 'are'} in no folder; move such files into the folder"
            " of a split or out of the source, or use --split none for one split of all"
        )
    raise InputError(
        f"{roots}: {splits}, but not these beside them: {some([other for other in others if other])}; use --split folder to"
        " make each of them a split, --split none for one split of all, or move other folders away"
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
            f"folders or files further down are named as splits ({example}), which only those right below a source can be:"
            " give the folder that contains them as the source, or use --split none"
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
        raise InputError(f"--split {by}: {len(present)} are too many for splits; there can be {MOST_SPLITS}")
    places = {name: place for place, name in enumerate(present)}
    return Splitting(tuple(present), np.array([places.get(name, 0) for name in names], np.uint8)[number.to_numpy()], by)


def _by_shares(listing: Listing, rule: SplitRule, seed: int) -> Splitting:
    draw = Draw.of(rule, seed)
    names = tuple(name for name, _ in rule.shares)
    return Splitting(names, draw.of_files(listing.hashes) if listing.whole else None, "shares", draw)


def _numbers(splitting: Splitting) -> npt.NDArray[np.uint8]:
    assert splitting.of_file is not None, "only shares divide the records of a file"
    return splitting.of_file


def _sorted(names: Iterable[str]) -> list[str]:
    return sorted(names, key=rank)


def _files(listing: Listing) -> str:
    return listing.side.shown if listing.side else ""
