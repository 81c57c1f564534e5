"""The records and files from which the rows of a shard were made, as the tables tell it."""

from __future__ import annotations

from shardctl.format.stored import StoredDataset


class Provenance:
    """Where the rows of one shard of a dataset come from. Raises DatasetError if the tables
    contradict themselves."""

    def __init__(self, stored: StoredDataset, shard: int) -> None:
        # 60 ms to import, and `quick` makes no object of this class.
        from shardctl.transforms.stored_recipe import (
            samples_per_record,
            splits_records,
            user_functions,
        )

        self.stored, self._shard, self.units = stored, shard, stored.units(shard)
        recipe = stored.manifest.recipe
        self.samples_per_record = samples_per_record(recipe)
        # These may make any number of samples of one record.
        self.by_functions = bool(user_functions(recipe)) or splits_records(recipe)
        self.tells_no_keys = stored.joins or stored.manifest.has_own_keys
        """True if the tables do not know the keys: they are values of a field, or a step made one
        sample of several records."""

    def of(self, row: int, key: str | None = None) -> tuple[str | None, str | None]:
        """Return the key and the source of a row. Without the `key` that it has, they are None
        where only that would tell."""
        file = self.stored.file_of_row(self._shard, row, key)
        if file is None:
            return key, None
        return key or self._key_of(row), self.stored.source_of(file)

    def span(self, first: int, rows: int) -> str | None:
        """Return the content of a block, for messages; None where its first or last key is not
        known."""
        one, last = self._key_of(first), self._key_of(first + rows - 1)
        return (
            f"{rows} samples, from {one} to {last}"
            if one is not None and last is not None and rows > 1
            else None
        )

    def _key_of(self, row: int) -> str | None:
        """Return the key of a row, as far as the plan tells it: where no record of the unit was
        left out."""
        if self.tells_no_keys:
            return None
        places = self.units.of_row(row)
        if len(places) != 1:
            return None
        unit = self.units[int(places[0])]
        as_planned = (
            not self.by_functions and unit.samples == unit.records * self.samples_per_record
        )
        if unit.first and not (self.units.in_order and as_planned):
            return None
        record = unit.first + (row - unit.first_row) // self.samples_per_record if unit.first else 0
        return self.stored.file(unit.file).key(record)
