"""Samples as they come from Python and from the datasets of PyTorch, TensorFlow and Hugging Face, made
into dicts of values; and put into the shards of their splits."""

from __future__ import annotations

import copy
import hashlib
import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.errors import InputError, ShardctlError, UsageError
from shardctl.format.arrays import Hashes, Numbers, hash_names
from shardctl.format.layout import Layout
from shardctl.format.manifest import Manifest
from shardctl.format.names import (
    DATA,
    FILES,
    MANIFEST,
    Json,
    path_of_shard,
)
from shardctl.format.roles import Sample
from shardctl.format.shard import Compression, ShardReader, ShardWriter, new_shard
from shardctl.format.tables import (
    FILE_FIELDS,
    MADE_BY,
    PLAN_SCHEMA,
    Making,
    ShardEntry,
    new_table,
)
from shardctl.format.update_state import NO_COUNTS
from shardctl.images.codecs.image import to_rgb
from shardctl.making.commit.commit import NewGeneration, new_manifest
from shardctl.making.commit.tables import writing_tables
from shardctl.making.plan.fingerprint import WRITTEN_PART
from shardctl.making.plan.splits import Draw, SplitRule, check_split_name
from shardctl.making.write.fields import Fields, Names, ShardLimits
from shardctl.system.files import naming_the_path, write_atomically
from shardctl.system.folders import LocalFolder
from shardctl.system.text import printable
from shardctl.transforms.values import DEEPEST, PLAIN, describe, row_size


@dataclass(frozen=True)
class Splits:
    """The splits that samples may be in, and what draws them where there are several."""

    names: tuple[str, ...]
    draw: Draw | None = None

    @classmethod
    def parse(cls, text: str) -> Splits:
        """Read the name of a split, or shares such as train=0.9,val=0.1. Raises UsageError."""
        if not isinstance(text, str) or "=" not in text:
            check_split_name(text)
            return cls((text,))
        rule = SplitRule.parse(text)
        return cls(tuple(name for name, _ in rule.shares), Draw.of(rule, 0))

    def of(self, key: str) -> str:
        """Return the split of a sample: that of a file of this name in a conversion with seed 0."""
        return self.names[int(self.draw.of_files(hash_names([key]))[0]) if self.draw else 0]


@dataclass(frozen=True)
class WrittenSplit:
    """The shards of one split, a hash of each key (samples,) uint64, and the samples of each class
    (classes,) int64."""

    split: str
    entries: tuple[ShardEntry, ...]
    hashes: Hashes
    labels: Numbers


NumberedSample = tuple[Sample, int, Splits]
"""A sample with its number, which messages name, and the splits that it may be in."""


def write_samples(
    root: Path,
    job: str,
    fields: Fields,
    samples: Iterable[NumberedSample],
    where: str = "",
) -> list[WrittenSplit]:
    """Write samples as shards of the dataset at `root`: each split has shards of its own, and one
    block in memory. `job` is the id of what does so. Messages about a sample begin with `where` it
    is from.

    Return what was written of each split, in the order in which they came. Raises InputError,
    StorageError.
    """
    layout, compression, given = fields.layout, fields.compression, fields.given
    classes, variant = len(given.classes or ()), layout.columns.get_field_index("variant")
    writing: dict[str, tuple[ShardSeries, array[int], Numbers]] = {}
    with ExitStack() as files:
        for sample, number, splits in samples:
            try:
                values = fields.values(sample, number)
            except InputError as error:
                raise InputError(f"{where}{error}") from error
            split = splits.of(values[0])
            if split not in writing:
                series = ShardSeries(root, job, layout, split, compression, given.limits)
                files.push(series.__exit__)
                writing[split] = series, array("Q"), np.zeros(classes, np.int64)
            series, hashes, labels = writing[split]
            name = _name_of(values[0], values[variant : variant + 1] if variant > 0 else ())
            hashes.append(xxhash.xxh3_64_intdigest(name))
            series.add(values, row_size(values))
            if classes and (label := values[fields.label]) is not None:
                labels[label] += 1
    return [
        WrittenSplit(split, tuple(series.entries), np.frombuffer(hashes, np.uint64), labels)
        for split, (series, hashes, labels) in writing.items()
    ]


# --- the keys of samples that are written: none may come twice ---

_FEW = 1000
"""Hashes of several samples whose keys are compared at a time."""


def _name_of(key: str, variant: Sequence[Any]) -> bytes:
    """Return what no two samples have in common: their key, after their variant where they have
    such a field. Samples that are variants of one record have the same key."""
    return " ".join([*map(repr, variant), key]).encode("utf-8", "surrogatepass")


def refuse_repeated(
    hashes: Hashes, root: Path, shards: Sequence[str], variants: Sequence[str]
) -> None:
    """Raise InputError if two samples of some shards below `root` have the same key, given a hash
    for each, (samples,): ten million are 80 MB. `variants` is the name of that column, if there is
    one.

    Equal hashes prove nothing: such keys are read from the shards and compared.
    """
    ordered = np.sort(hashes)
    again = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    for start in range(0, len(again), _FEW):
        wanted = np.flatnonzero(np.isin(hashes, again[start : start + _FEW]))
        first, seen = 0, dict[bytes, int]()
        for block in chain.from_iterable(
            ShardReader(LocalFolder(root), path).blocks() for path in shards
        ):
            here = wanted[(wanted >= first) & (wanted < first + block.num_rows)]
            for row in here.tolist():
                of_row = block.slice(row - first, 1)
                key = of_row.column("key")[0].as_py()
                name = _name_of(key, [of_row.column(each)[0].as_py() for each in variants])
                if name in seen:
                    raise InputError(
                        f"the samples {seen[name]:,} and {row:,} have the key {printable(key)}; "
                        "give each a key of its own"
                    )
                seen[name] = row
            first += block.num_rows


# --- the shards of one split, written one after the other ---


@dataclass
class ShardSeries:
    """Writes the rows of one split into one shard after the other; one block is in memory.
    `entries` are the shards so far."""

    root: Path
    job: str
    layout: Layout
    split: str
    compression: Compression
    limits: ShardLimits
    entries: list[ShardEntry] = field(default_factory=list)
    _open: AbstractContextManager[ShardWriter] | None = None
    _rows: int = 0
    _raw_bytes: int = 0

    def add(self, values: tuple[Any, ...], size: int) -> None:
        """Append one row: `values` in the order of the columns, `size` about their bytes. Raises
        StorageError."""
        if self._open is None:
            place = self.root, self.job, self.layout, self.split, len(self.entries)
            self._open = new_shard(*place, self.compression)
            self._writer, self._rows, self._raw_bytes = self._open.__enter__(), 0, 0
        with naming_the_path(self.root / DATA):
            self._writer.add(values, size)
        self._rows += 1
        self._raw_bytes += size
        # a shard may be smaller than a block
        written = max(self._writer.sink.tell(), self._raw_bytes - self._writer.raw_bytes)
        if self._rows >= self.limits.samples or written >= self.limits.bytes:
            self.close()

    def close(self) -> None:
        """End the shard that is being written, if there is one. Raises StorageError."""
        self.__exit__(None, None, None)

    def __exit__(self, *error: Any) -> None:
        """As `close`; after an error the shard goes."""
        shard, self._open = self._open, None
        if shard is not None:
            shard.__exit__(*error)
        if shard is not None and error[0] is None:
            facts, number = self._writer.facts, len(self.entries)
            path = path_of_shard(self.split, number, facts.sha256)
            self.entries.append(ShardEntry.of_written(self.split, number, path, facts))


def digest_of_shards(entries: Iterable[ShardEntry]) -> str:
    """Return what stands for the samples of a dataset without a source in its fingerprint."""
    return hashlib.sha256(
        json.dumps([[f"{entry.name}.arrow", entry.sha256] for entry in entries]).encode()
    ).hexdigest()[:32]


def write_tables(folder: Path, entries: Sequence[ShardEntry], making: Making) -> Json:
    """Write all tables of a dataset without a source, of whose shards are the `entries`, and return
    what the manifest says of them."""
    with new_table(folder / FILES, pa.schema(FILE_FIELDS)):
        pass
    units = PLAN_SCHEMA.empty_table()
    with writing_tables(folder, folder.parent, None) as tables:
        for entry in entries:
            tables.add(entry, units, (), NO_COUNTS)
        splits = dict.fromkeys(entry.split for entry in entries)
        return tables.finish(splits, making, None, ())


def finish(
    new: NewGeneration,
    layout: Layout,
    entries: Sequence[ShardEntry],
    compression: Compression,
    settings: dict[str, Any],
    class_counts: dict[str, list[int]] | None = None,
) -> Manifest:
    """Commit a dataset whose shards are there: write its tables, and its manifest last."""
    recipe: dict[str, Any] = {
        "kind": layout.kind,
        "store": layout.image.store if layout.image else None,
        "compression": str(compression),
        "transform": [],
    }
    parts = {WRITTEN_PART: digest_of_shards(entries)}
    tables = new.tables
    facts = write_tables(
        tables, entries, Making(layout.to_json(), layout.fields(), recipe, settings, parts)
    )
    manifest = new_manifest(
        layout,
        recipe,
        parts,
        settings=settings,
        class_counts=class_counts,
        job=new.id,
        **facts,
    ).with_generation(new.target.manifest(), MADE_BY, sum(entry.rows for entry in entries), 0, 0)
    write_atomically(tables / MANIFEST, manifest.to_json().encode())
    return new.commit()


AS_THEY_ARE = (str, int, float, bytes, bool, type(None), list, dict, np.ndarray)
"""Types of values that need no look."""

_DICTS_OF = {
    "pyarrow": "table.to_pylist()",
    "pandas": 'frame.to_dict("records")',
    "polars": "frame.to_dicts()",
}
"""How tables of other packages give a dict for each row."""


def elements_of(samples: Any) -> Iterable[Any]:
    """Return what yields the samples of a dataset of any library; an iterable as it is.

    A map-style dataset of PyTorch has no `__iter__` that ends, so it is asked for one index after
    the other.
    """
    if isinstance(samples, str | Path):
        raise UsageError(
            f"samples are dicts, and {str(samples)!r} is a path; shardctl.convert reads files"
        )
    if how := _DICTS_OF.get(type(samples).__module__.partition(".")[0]):
        raise UsageError(
            f"samples are an iterable of dicts, and this is {describe(samples)}; give {how}"
        )
    if hasattr(samples, "as_numpy_iterator"):  # tf.data.Dataset
        return samples.as_numpy_iterator()  # type: ignore[no-any-return]  # of a library that may be missing
    if is_indexed(samples):
        return (samples[index] for index in range(len(samples)))
    if not isinstance(samples, Iterable):
        raise UsageError(
            "samples are an iterable of dicts, or a dataset of PyTorch or TensorFlow; got "
            f"{describe(samples)}"
        )
    return samples


def is_indexed(samples: Any) -> bool:
    """Return whether these are samples by index, and no sequence of Python: a map-style dataset of
    PyTorch, or one like it."""
    return (
        hasattr(samples, "__getitem__")
        and hasattr(samples, "__len__")
        and not isinstance(samples, Sequence | Mapping)
    )


def classes_of(samples: Any, names: Names) -> tuple[str, ...] | None:
    """Return the names of the classes that a dataset says its labels have, None without.

    Hugging Face has them in `features`, torchvision in `classes`; there `names` must say which
    value is the label.
    """
    first = next(iter(samples.values()), None) if isinstance(samples, Mapping) else samples
    features, found = getattr(first, "features", None), None
    if isinstance(features, Mapping):
        found = getattr(features.get("label"), "names", None)
    elif "label" in (names or ()):
        found = getattr(first, "classes", None)
    if not isinstance(found, list | tuple) or not all(isinstance(name, str) for name in found):
        return None
    return tuple(found) or None


def named(
    elements: Iterable[Any], names: Names, number: int = 0, where: str = ""
) -> Iterator[Sample]:
    """Yield elements as samples: tuples get the names of their fields, tensors and pictures become
    arrays.

    What the caller's code raises is an InputError that says at which sample; `number` is that of
    the first one, and `where` says of which part they are.
    """
    iterator = iter(elements)
    while True:
        try:
            element = next(iterator)
        except StopIteration:
            return
        except (ShardctlError, MemoryError):
            raise
        except Exception as error:  # whatever a person's code raises
            raise InputError(
                f"{where}sample {number:,}: making it raised {type(error).__name__}: "
                f"{printable(error)}"
            ) from error
        yield own(_sample(element, names, f"{where}sample {number:,}"))
        number += 1


def _sample(element: Any, names: Names, who: str) -> Any:
    if names is not None and isinstance(element, dict):
        raise InputError(f"{who} is a dict, so its values have names; leave out fields=")
    if names is not None and isinstance(element, tuple | list):
        if len(element) != len(names):
            raise InputError(f"{who} has {len(element)} values, and fields= names {len(names)}")
        element = dict(zip(names, element, strict=True))
    if isinstance(element, tuple):
        raise InputError(
            f"{who} is a tuple of {len(element)} values; name them, as in fields=('image', 'label')"
        )
    if not isinstance(element, dict):
        return element
    if not all(type(value) in AS_THEY_ARE for value in element.values()):
        return {name: _value(value) for name, value in element.items()}
    if _is_stored_image(element.get("image")):
        return {**element, "image": element["image"]["bytes"]}
    return element


def _value(value: Any) -> Any:
    """Return a tensor or a picture as an array, everything else as it is."""
    if hasattr(value, "detach") and hasattr(value, "numpy"):  # torch.Tensor
        return value.detach().cpu().numpy()
    if hasattr(value, "numpy") and callable(value.numpy):  # tf.Tensor
        return value.numpy()
    # a picture of Pillow
    if hasattr(value, "convert") and hasattr(value, "tobytes") and hasattr(value, "mode"):
        return np.asarray(to_rgb(value))
    return value["bytes"] if _is_stored_image(value) else value


def _is_stored_image(value: Any) -> bool:
    """Return whether this is an image as Hugging Face stores it: {"bytes": ..., "path": ...}."""
    return (
        isinstance(value, dict)
        and value.keys() == {"bytes", "path"}
        and isinstance(value["bytes"], bytes)
    )


def own(value: Any, deepest: int = DEEPEST) -> Any:
    """Return a value of which a generator may change its own copy afterwards: arrays, lists and
    dicts are copied."""
    if isinstance(value, np.ndarray):
        return copy.deepcopy(value) if value.dtype.hasobject else value.copy()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if deepest and isinstance(value, list | tuple):
        if set(map(type, value)) <= PLAIN:
            return value[:]
        made = [own(part, deepest - 1) for part in value]
        return tuple(made) if isinstance(value, tuple) else made
    if deepest and isinstance(value, dict):
        return {name: own(part, deepest - 1) for name, part in value.items()}
    return value


def part_of(make: Callable[[Any], Iterable[Any]], part: Any) -> Iterable[Any]:
    """Yield what a function makes of one part. It is called when the first sample is wanted."""
    made = make(part)
    if made is None:
        raise ValueError("the function of the parts returned None, not samples")
    yield from elements_of(made)
