"""Recognises names of splits among the names of folders, files and sources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from shardctl.errors import UsageError

ROLES = (
    ("train", "training", "trn", "trainval"),
    ("val", "valid", "validation", "validate", "dev", "devel", "development"),
    ("test", "testing", "tst", "eval", "evaluation", "holdout", "heldout"),
)
"""The words that name a split, in the order of the dataset. (docs/inputs/splits.md lists them.)"""

_PLACES = {
    word: (role, place) for role, words in enumerate(ROLES) for place, word in enumerate(words)
}
_WORDS = ("train", "trn", "val", "dev", "test", "tst", "hold", "held")
"""Every name with a word of ROLES has one of these in it."""

_ANY_WORD = re.compile(f"(?i){'|'.join(_WORDS)}")

_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")

_JOINED = re.compile(r"(train|test|val|valid|dev|eval)(?:set|data)|(test|eval)s")
"""Parts that are a split word and what is of it: testset is read as test_set, and so is tests."""

_OF_TIME = frozenset(("until", "till", "from", "since", "through", "before", "after"))
"""Words behind `valid` that say that it is none."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]*")


def is_split_name(name: str) -> bool:
    """Return whether a split can have this name: file names begin with it. It is made of letters,
    digits, _ and ."""
    return _NAME.fullmatch(name) is not None


@dataclass(frozen=True)
class SplitWord:
    """The split word in a name. `role` is its row of ROLES.

    `alone` says that the name is that word with nothing after it but numbers and parts of one or
    two letters (train2017, train_256px, trainA), not one word of several (seg_train, bullet_train).
    `rest` are the other parts.
    """

    word: str
    role: int
    alone: bool
    rest: tuple[str, ...]


def split_word(name: str) -> SplitWord | None:
    """Return the split word in a name, None if there is none."""
    joined = re.sub(r"(?i)(?<![a-z])(hold|held)[-_ ]out(?![a-z])", r"\1out", name)
    parts = list[str]()
    for part in map(str.lower, _PART.findall(joined)):
        found = _JOINED.fullmatch(part)
        parts += (found[1] or found[2], "set") if found else (part,)
    for place, (word, after) in enumerate(pairwise([*parts, ""])):
        if word in _PLACES and not (word == "valid" and after in _OF_TIME):
            is_short = all(part.isdigit() or len(part) <= 2 for part in parts[1:])
            alone = is_short and joined.lower().startswith(word)
            rest = (*parts[:place], *parts[place + 1 :])
            return SplitWord(word, _PLACES[word][0], alone, rest)
    return None


_OF_TWO = {"trainval": {0, 1}, "eval": {1, 2}, "evaluation": {1, 2}}
"""Words for two of ROLES."""


def roles_of(folders: Sequence[str]) -> set[int]:
    """Return the rows of ROLES of the last folder that is called as a split alone; none without
    one."""
    word = next((word for word in map(split_word, reversed(folders)) if word and word.alone), None)
    return _OF_TWO.get(word.word, {word.role}) if word else set()


def may_name_a_split(name: str) -> bool:
    """Return False for a name that has no split word, True for nearly no other name. Fast: there
    may be millions."""
    return _ANY_WORD.search(name) is not None


def named_as_splits(names: Iterable[str]) -> set[str]:
    """Return those of the names that are names of splits.

    A name that only contains a split word counts where no name is such a word alone, and the words
    have two roles: seg_train and seg_test are splits, bullet_train beside other classes is not.
    """
    words = {name: split_word(name) for name in names}
    alone = {name for name, word in words.items() if word and word.alone}
    if alone or len({word.role for word in words.values() if word}) < 2:
        return alone
    return {name for name, word in words.items() if word}


@lru_cache(maxsize=4096)
def split_parts(folder: str) -> tuple[str, ...]:
    """Return the words of splits alone in a path, and a first part with one: few, of millions of
    paths."""
    if not may_name_a_split(folder):
        return ()
    words = [(part, split_word(part)) for part in folder.split("/")]
    return tuple(
        word.word if word.alone else part
        for part, word in words
        if word and (word.alone or part == words[0][0])
    )


def are_sets_of_one(names: Iterable[str]) -> bool:
    """Return whether two of the names differ in their split word alone: seg_train and seg_test,
    whatever is beside."""
    roles: dict[tuple[str, ...], int] = {}
    words = filter(None, map(split_word, names))
    return any(roles.setdefault(word.rest, word.role) != word.role for word in words)


@dataclass(frozen=True)
class GroupRule:
    """What puts samples into a group that no split divides: a field, or a regular expression with
    one group, by its text."""

    text: str

    @classmethod
    def parse(cls, text: str) -> GroupRule:
        """Read what `--group` says. Raises UsageError."""
        try:
            groups = re.compile(text).groups if "(" in text else 1
        except re.error as error:
            raise UsageError(f"group {text!r} is not a regular expression: {error}") from None
        if groups != 1:
            raise UsageError(
                f"group {text!r} has {groups} groups in parentheses, not one; write (?:…) for the others"
            )
        return cls(text)

    def __str__(self) -> str:
        return self.text

    @property
    def field(self) -> str | None:
        """The field that has the groups; None where an expression finds them in keys."""
        return None if "(" in self.text else self.text

    def of(self, values: Iterable[str]) -> list[str]:
        """Return the group of each sample by its value of the field, or by its key; "" for a key
        that does not match."""
        if self.field is not None:
            return list(values)
        search = re.compile(self.text).search
        return [(found[1] or "") if (found := search(key)) else "" for key in values]


def rank(name: str) -> tuple[int, int, str]:
    """Return what sorts splits: training before validation before test, then others; by name where
    that is the same."""
    found = split_word(name)
    return (*(_PLACES[found.word] if found else (len(ROLES), 0)), name)
