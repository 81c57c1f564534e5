"""Compares a measurement with an earlier one: what is faster, by how much, and whether that is more
than noise."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardctl.errors import InputError
from shardctl.format.names import Json
from shardctl.system.text import printable

METRICS = (
    "samples_per_s",
    "mb_per_s",
    "stored_mb_per_s",
    "first_batch_s",
    "batch_ms_mean",
    "batch_ms_p99",
    "rss_mb",
    "cores_used",
    "accelerator_utilization",
    "gpus_fed",
)
"""The figures that are compared.

The median time between batches is not compared: a loader returns batches in groups, of which only
the first takes time, so that the median is a few microseconds and doubles by chance. The mean and
the 99th percentile include the waits.
"""

_COSTS = {"first_batch_s", "batch_ms_mean", "batch_ms_p99", "rss_mb", "cores_used"}
"""Those of which a smaller value is better."""

BETTER, WORSE, NOISE, UNJUDGED = "better", "worse", "noise", "unjudged"

LEAST_RUNS = 3
"""Values that are needed to estimate the noise of a figure: two are close by chance in one of ten
measurements."""

_MOST_LOAD = 0.9
"""Largest share of the processor used by other programs that is counted as noise."""

_SETTINGS = (
    "threads",
    "processes",
    "batch_size",
    "shuffle",
    "split",
    "cold",
    "decode",
    "consumer",
    "consumer_rate",
    "gpus",
)
_EARLIER = {"processes": 0}
"""Settings of measurements by versions that did not have them."""

_ENVIRONMENT = ("cpu", "cores", "memory_bytes", "system", "file_system", "python")


@dataclass(frozen=True)
class Change:
    """One figure, before and now. `change` is now / before - 1.

    `noise` is the change that may be chance: values up to (1 + noise) times as large as the other
    count as the same. It is None if one of the measurements has fewer than LEAST_RUNS values of
    this figure. `verdict` is better, worse, noise (the change may be chance), or unjudged (`noise`
    is None).
    """

    metric: str
    before: float
    now: float
    change: float
    noise: float | None
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """All figures that both measurements have, and the differences between their settings, which
    may explain a change."""

    changes: tuple[Change, ...]
    differences: tuple[str, ...]


def load_record(path: Path) -> Json:
    """Read the output of `shardctl bench --json`. Raises InputError."""
    shown = printable(path)
    try:
        record = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{shown}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or not isinstance(record.get("samples_per_s"), int | float):
        raise InputError(f"{shown}: not the output of `shardctl bench --json`")
    return record


def compare_records(before: Json, now: Json) -> Comparison:
    """Compare two records of `shardctl bench --json`."""
    changes = []
    loads = [min(_number(record, "other_load") or 0.0, _MOST_LOAD) for record in (before, now)]
    for metric in METRICS:
        old, new = _number(before, metric), _number(now, metric)
        if not old or new is None:
            continue
        noise = _noise(_values(before, metric), _values(now, metric), max(loads))
        changes.append(
            Change(
                metric,
                old,
                new,
                round(new / old - 1, 4),
                noise,
                _verdict(old, new, noise, metric not in _COSTS),
            )
        )
    return Comparison(tuple(changes), tuple(_differences(before, now)))


def _noise(before: list[float], now: list[float], load: float) -> float | None:
    """Return the change that may be chance: largest run / smallest run of both measurements, and
    the load of other programs.

    Programs that use the share `load` of the processor leave 1 - `load` of it, and they may have
    used nothing in the other measurement.
    """
    if min(len(before), len(now)) < LEAST_RUNS:
        return None
    return round(max(before) / min(before) * max(now) / min(now) / (1 - load) - 1, 4)


def _verdict(old: float, new: float, noise: float | None, more_is_better: bool) -> str:
    if noise is None:
        return UNJUDGED
    if max(old, new) <= (1 + noise) * min(old, new):
        return NOISE
    return BETTER if (new > old) is more_is_better else WORSE


def _number(record: Json, name: str) -> float | None:
    value = record.get(name)
    return value if _is_number(value) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _values(record: Json, metric: str) -> list[float]:
    """Return the values of a figure in the runs of a measurement; empty if the record has none.

    The number of GPUs that a loader feeds is its samples/s divided by a fixed rate, and has the
    same noise.
    """
    values = _part(record, "by_run").get("samples_per_s" if metric == "gpus_fed" else metric)
    if not isinstance(values, list) or not all(_is_number(value) and value > 0 for value in values):
        return []
    return values


def _differences(before: Json, now: Json) -> Iterator[str]:
    pairs = [
        (name, before.get(name, _EARLIER.get(name)), now.get(name, _EARLIER.get(name)))
        for name in _SETTINGS
    ]
    there, here = _part(before, "environment"), _part(now, "environment")
    pairs += [(name.replace("_", " "), there.get(name), here.get(name)) for name in _ENVIRONMENT]
    versions, own = _part(there, "versions"), _part(here, "versions")
    pairs += [(name, versions.get(name), own.get(name)) for name in sorted({*versions, *own})]
    pairs.append(
        (
            "dataset",
            _part(before, "dataset").get("fingerprint"),
            _part(now, "dataset").get("fingerprint"),
        )
    )
    for name, old, new in pairs:
        if old != new and (name != "dataset" or None not in (old, new)):
            yield f"{name}: {printable(old)}, now {printable(new)}"


def _part(record: Json, name: str) -> Json:
    part = record.get(name)
    return part if isinstance(part, dict) else {}
