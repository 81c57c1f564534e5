"""What can be chosen of an export: which part of the dataset, and the settings of its form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shardctl.errors import UsageError
from shardctl.interop.exports.table import made_of, that_have, words_of
from shardctl.system import arguments
from shardctl.system.options import Off, OptionType, Text, Word, option
from shardctl.system.text import unknown


class Columns(OptionType):
    """Names of columns: with commas between them on the command line, a list in Python."""

    def read(self, given: str) -> list[str]:
        """Return the names."""
        return [name.strip() for name in given.split(",") if name.strip()]

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for anything but a list of names."""
        arguments.names(name, value)


class NewNames(OptionType):
    """Other names of columns: COLUMN=NAME, several times, on the command line, a dict in Python."""

    repeats = True

    def read(self, given: tuple[str, ...]) -> dict[str, str]:
        """Return the new names by the old ones. Raises ValueError."""
        pairs = [value.partition("=") for value in given]
        odd = next(
            (
                value
                for value, (name, _, new) in zip(given, pairs, strict=True)
                if not (name and new) or "=" in new
            ),
            None,
        )
        if odd is not None:
            raise ValueError(
                f"{odd!r} is not COLUMN=NAME; give the option again for each other column"
            )
        return {name: new for name, _, new in pairs}

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for anything but a dict of strings."""
        for column, new in arguments.mapping(name, value).items():
            Text().check(column, new)


class OnLoss(Word):
    """What becomes of a column that a form cannot hold: an error, JSON text, or it is left out."""

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for anything but these words."""
        if value not in self.words:
            raise UsageError(unknown(name, value, self.words))


@dataclass(frozen=True)
class Choice:
    """What the user chose: one split or all (None), some columns, other names for them, a condition
    on samples, how raw images are stored (`keep`, `png`, `jpeg:Q`; None: as suits the form), and
    what becomes of columns that the form cannot hold."""

    split: str | None = option(
        Text(),
        None,
        "Export this split only.  [default: all, in files of their own]",
        metavar="NAME",
    )
    columns: tuple[str, ...] | None = option(
        Columns(), None, "Export these columns only, and the key.  [default: all]", metavar="A,B,…"
    )
    rename: Mapping[str, str] = option(
        NewNames(),
        dict,
        "Write the column A under the name B. May be given several times.",
        metavar="A=B",
    )
    where: str | None = option(
        Text(),
        None,
        "Export only the samples that match a condition: 'label == \"cat\" and width > 500'.",
        metavar="EXPR",
    )
    store: str | None = option(
        Text(),
        None,
        "How raw images are written. Encoded images are copied unchanged.  [default: png where the "
        "form has no arrays]",
        metavar="keep|png|jpeg:Q",
    )
    on_loss: str = option(
        OnLoss("fail", "json", "drop"),
        "fail",
        "Columns that the form cannot hold: an error, JSON text, or left out. "
        f"{' and '.join(made_of('objects'))} have no JSON"
        " text; they leave out parts of objects that they cannot hold.",
        shows_default=True,
    )

    def to_json(self) -> dict[str, Any]:
        """Return the choice as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Choice:
        """Build the choice that `to_json` gave."""
        columns = record["columns"]
        return cls(**{**record, "columns": None if columns is None else tuple(columns)})


@dataclass(frozen=True)
class FormSettings:
    """The settings that some form has, None where nothing is said. The class of a form checks those
    that it has."""

    compression: str | None = option(Text(), None, words_of("compression"), metavar="NAME")
    eos: bool | None = option(
        Off(),
        None,
        f"{', '.join(that_have('eos'))}: do not add an end-of-text token to documents that do not "
        "end with it.",
        spelling="--no-eos",
    )
    task: str | None = option(
        Text(),
        None,
        f"{', '.join(that_have('task'))}: detect (boxes, the default), segment (polygons) or pose "
        "(keypoints).",
        metavar="NAME",
    )
