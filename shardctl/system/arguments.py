"""Checks of arguments of Python functions: a wrong type is one clear error, at once."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from shardctl.errors import UsageError

_INSTEAD = {
    "DataLoader set_format to_torch with_format device pin_memory": "write "
    'shardctl.torch.Loader(ds.loader(256), device="cuda")',
    "batch_sampler sampler select head rename_column": "ds.filter(…), ds.take(…) and ds[10:20] "
    "choose samples, columns= fields, shardctl.mix gives weights",
    "collate_fn map": "write ds.loader(256).map(function)",
    "column_names features info shape dtype": "ds.schema has the fields and their types",
    "load load_dataset load_from_disk WebDataset ImageFolder from_folder": "write shardctl.open(path)",
    "num_proc num_workers workers": "loaders take threads= and processes=, convert takes workers=",
    "mean std": 'ds.loader(256, normalize={"image": (mean, std)}) normalizes images',
    "batch iter batched unbatched": "write ds.loader(batch_size=256)",
    "categories num_classes class_to_idx labels": "ds.classes, or ds.class_names by field, has the names",
    "to_pandas to_arrow to_table": "`shardctl export DST OUT --to parquet` writes what pandas reads",
    "num_rows samples num_batches num_samples": "write len(…)",
    "shuffle": "write ds.loader(256, shuffle=True)",
    "concatenate concat merge": "write shardctl.mix([a, b], [1, 1])",
    "splits train_test_split": "shardctl.open(path, split=...) reads one; convert(split=...) makes them",
    "recipe demo preview cache tokenizer": "it is a command: `shardctl -h`",
    "quality": 'write store="jpeg:90"',
    "resume": "the same call goes on where it stopped",
    "source sources input": "the first argument is src",
    "out output destination": "the destination is dst",
}

ELSEWHERE = {name: instead for names, instead in _INSTEAD.items() for name in names.split()}
"""Names of attributes and arguments of other libraries, and what to write here."""


def contradiction(*ways: str) -> UsageError:
    """Return an error for options of which only one can be given."""
    return UsageError(f"{' and '.join(ways)} contradict each other; use one of them")


def index_of(value: Any) -> int | None:
    """Return a whole number (of Python or numpy), None for anything else."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    """Return a whole number (of Python or numpy). Raises UsageError for anything else, and for one
    below `least`."""
    number = index_of(value)
    if number is None:
        raise UsageError(f"{name} must be a whole number; it is {value!r}")
    if least is not None and number < least:
        raise UsageError(f"{name} must be at least {least}; it is {number}")
    return number


def real_number(name: str, value: Any) -> float:
    """Return a finite number. Raises UsageError for anything else."""
    try:
        number = math.nan if isinstance(value, str | bytes | bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{name} must be a finite number; it is {value!r}")
    return number


def truth(name: str, value: Any) -> bool:
    """Return True or False. Raises UsageError for anything but these, 0 and 1."""
    if not any(value is known for known in (True, False)) and not (
        hasattr(value, "__index__") and value in (0, 1)
    ):
        raise UsageError(f"{name} must be True or False; it is {value!r}")
    return bool(value)


def caller_level() -> int:
    """Return the `stacklevel` with which the calling function warns about the line outside of
    shardctl that called it."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in (
        "shardctl",
        "contextlib",
    ):
        level, frame = level + 1, frame.f_back
    return level


def instance(name: str, value: Any, kind: type[Any]) -> None:
    """Raise UsageError for anything but an object of the class `kind`, and None."""
    if value is not None and not isinstance(value, kind):
        raise UsageError(
            f"{name} must be a {kind.__module__}.{kind.__name__}; it has the type "
            f"{type(value).__name__}"
        )


def names(name: str, value: Any) -> tuple[str, ...]:
    """Return several names. Raises UsageError for a bare string and for anything that is not
    strings."""
    if isinstance(value, str):
        several = value.replace(",", " ").split() or [value]
        raise UsageError(f"{name} takes a list of names; write {name}={several!r}")
    if not isinstance(value, Sequence) or not all(isinstance(each, str) for each in value):
        raise UsageError(f"{name} takes a list of names; it is {value!r}")
    return tuple(value)


def mapping(name: str, value: Any) -> dict[str, Any]:
    """Return a dict by column names, an empty one for None. Raises UsageError for anything else."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise UsageError(
            f"{name} takes a dict by column names, as in {name}={{'image': …}}; it is {value!r}"
        )
    return dict(value)
