"""What the table of exports says is what their classes do."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from shardctl.errors import UsageError
from shardctl.interop.exports.base import Export
from shardctl.interop.exports.job import chosen_export
from shardctl.interop.exports.options import EXPORTS, FormSettings
from shardctl.interop.exports.token_files import TokenExport


@pytest.mark.parametrize("to", EXPORTS)
def test_a_row_has_the_settings_of_its_class(to):
    form, export = EXPORTS[to], chosen_export(to, {})
    assert (type(export).__name__, export.name) == (form.export.partition(":")[2], to)
    assert isinstance(export, Export)
    fields: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(export)}
    assert (
        set(fields)
        == set(form.settings)
        <= {field.name for field in dataclasses.fields(FormSettings)}
    )
    for name, words in form.settings.items():
        assert fields[name] == (words[0] if words else True)
        if words:
            with pytest.raises(UsageError):
                chosen_export(to, {name: "colour"})
    assert isinstance(export, TokenExport) == (form.of == "tokens")
