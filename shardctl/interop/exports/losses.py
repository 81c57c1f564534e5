"""What a form cannot hold of a dataset, found before anything is written."""

from __future__ import annotations

from dataclasses import dataclass

from shardctl.errors import UsageError
from shardctl.format.python_values import check_type
from shardctl.interop.exports.base import Column, ColumnEncoding, Export
from shardctl.interop.exports.images import Recoding
from shardctl.interop.exports.source import Source
from shardctl.sources.export_description import Field
from shardctl.system.text import first_repeated

SHORT = 60
"""A type with more letters than this is not written out in a sentence."""


@dataclass(frozen=True)
class PlannedField:
    """A column of the dataset, and what becomes of it: `written` as which name, None if it is left
    out, and in which `form`.

    `loss` says what the form cannot hold of it, None if nothing is lost.
    """

    name: str
    type: str
    written: str | None
    form: str
    loss: str | None = None

    @property
    def field(self) -> Field | None:
        """What is written of it; None if nothing is."""
        return None if self.written is None else Field(self.name, self.written, self.form)


def plan_fields(export: Export, source: Source) -> tuple[PlannedField, ...]:
    """Say what becomes of every chosen column. Losses are told and not refused.

    Raises UsageError for columns whose names in the target would be the same, and DatasetError.
    """
    Recoding.parse(source.choice.store)
    planned = tuple(
        _planned(export, Column(source, name), source.choice.on_loss) for name in source.names
    )
    names = [each.written for each in planned if each.written is not None]
    twice = first_repeated(names)
    if twice is not None:
        raise UsageError(
            f"several columns would be called {twice!r} in the export; --rename gives them other "
            "names"
        )
    return planned


def refuse_losses(export: Export, source: Source, planned: tuple[PlannedField, ...]) -> None:
    """Raise UsageError if something is lost that the user has not allowed to be."""
    lost = [each for each in planned if each.loss is not None]
    if source.choice.on_loss == "fail" and lost:
        said = "; ".join(f"{each.name} ({_short(each.type)}): {each.loss}" for each in lost)
        names = ", ".join(each.name for each in lost)
        columns = [Column(source, each.name) for each in lost]
        if all(export.place_as_json(column) is not None for column in columns):
            remedy = (
                f"--on-loss json writes {names} as JSON text, and --on-loss drop leaves them out"
            )
        elif any(export.place_of_rest(column) is not None for column in columns):
            remedy = "--on-loss drop writes the rest"
        else:
            remedy = f"--on-loss drop leaves out {names}"
        raise UsageError(f"{export.name} cannot hold all of {source.shown}: {said}. {remedy}")


def accepted_losses(planned: tuple[PlannedField, ...]) -> list[str]:
    """Say what is lost of each column, which the user has allowed."""
    lost = [each for each in planned if each.loss is not None]
    how = {None: "is left out: {}", "json": "is written as JSON text: {}"}
    return [
        f"{each.name} "
        f"{how.get(each.written and each.form, 'is written, but not all: left out is {}').format(each.loss)}"
        for each in lost
    ]


def _short(type_: str) -> str:
    """Return a type for a sentence: a long one without what is in it."""
    return type_ if len(type_) <= SHORT else type_.partition("<")[0]


def _planned(export: Export, column: Column, on_loss: str) -> PlannedField:
    place = export.place(column)
    type_ = str(column.type)
    if place is None:
        return PlannedField(column.name, type_, None, "left out")
    if place.loss is None or on_loss == "fail":
        return PlannedField(column.name, type_, place.written, place.form, place.loss)
    instead = export.place_of_rest(column) if on_loss == "drop" else _as_json(export, column)
    if instead is None:
        return PlannedField(column.name, type_, None, "left out", place.loss)
    return PlannedField(column.name, type_, instead.written, instead.form, place.loss)


def _as_json(export: Export, column: Column) -> ColumnEncoding:
    try:
        check_type(column.type)
    except TypeError as error:
        raise UsageError(f"{column.name}: {error}; leave it out with --on-loss drop") from error
    place = export.place_as_json(column)
    if place is None:
        raise UsageError(
            f"{column.name}: {export.name} has no place for JSON text; use --on-loss drop"
        )
    return place
