"""Datasets of samples that are made in Python: the same shards, tables and commit as those of a conversion, and no source."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import secrets
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from shardctl import lease
from shardctl.codecs import image
from shardctl.codecs.image import Store
from shardctl.conversion import publish
from shardctl.conversion.options import check_destination, check_if_running, check_shards, check_writable
from shardctl.conversion.staging import REPAIR_PREFIX, discard
from shardctl.engines.job import NEW_FOLDER
from shardctl.errors import DatasetError, InputError, Rejection, UsageError
from shardctl.fingerprint import WRITTEN_PART, fingerprint
from shardctl.layout import ENCODED_IMAGE, Layout, image_tensor
from shardctl.manifest import FileFacts, Manifest, SplitFacts, sum_up
from shardctl.pipeline.samples import row_size
from shardctl.roles import Image
from shardctl.sample import Sample
from shardctl.shard import Compression, ShardFacts, ShardReader, ShardWriter, shard_schema
from shardctl.splitting import is_split_name
from shardctl.storage import StreamedFile, naming_the_path, printable, replacing, write_atomically
from shardctl.tables import (
    FILE_FIELDS,
    FILES,
    MADE_BY,
    MANIFEST,
    PLAN,
    PLAN_SCHEMA,
    REJECTS,
    SHARDS,
    STAGING,
    Making,
    ShardEntry,
    ShardSpool,
    shard_name,
)
from shardctl.transforms.values import UnfitValue, check_fit, column_type, describe, plain_value, python_value
from shardctl.version import __version__

FIRST_SAMPLES = 1024
"""How many samples are looked at for the types of their fields, where no schema is given."""

SHARD_BYTES = 128 << 20


@dataclass(frozen=True)
class WriteResult:
    """What `write` wrote: how many samples, shards and bytes (of the shards), in how many seconds."""

    samples: int
    shards: int
    bytes: int
    seconds: float
    fingerprint: str


def write(
    dst: str | Path,
    samples: Iterable[Sample] | Mapping[str, Iterable[Sample]],
    schema: pa.Schema | None = None,
    *,
    classes: Sequence[str] | None = None,
    store: str | None = None,
    compression: str = "auto",
    shard_size: int | None = None,
    samples_per_shard: int | None = None,
    overwrite: bool = False,
    if_running: str = "wait",
) -> WriteResult:
    """Write samples that are made in Python as a dataset: the same files and the same commit as those of `convert`.

    `samples` are dicts of field name to value, in the order of the dataset, taken one at a time; or such an iterable for each
    split, by name (else all are in the split `train`). `key` names a sample; without it samples are numbered: 000000000,
    000000001. No two samples have the same key, in whichever splits, unless a field `variant` tells them apart; a repeated one
    is found when all are written. `image` is an encoded image (bytes, which are kept) or pixels, (H, W, 3) uint8, kept as
    `store` says: `raw` (the default; one shape for all), `png`, `jpeg:90`, `webp:80`. With `classes`, their names, `label` is a
    name or a number. `schema` gives the Arrow type of every field; without it, types are found in the first 1,024 samples. No
    value is changed: one that does not fit its column is an error. A shard has `shard_size` bytes (by default 128 MiB) or
    `samples_per_shard`.

    Nothing is at `dst` before all of it is. Raises InputError for a sample that cannot be written, UsageError, StorageError,
    BusyError, and DatasetError if there is a dataset and `overwrite` is not set; what the iterable raises ends it as well.
    """
    began = time.monotonic()
    limits = _Limits.of(shard_size, samples_per_shard)
    check_if_running(if_running)
    parts = dict(samples) if isinstance(samples, Mapping) else {"train": samples}
    _refuse_bad_names(parts)
    target = check_destination(Path(dst), [])
    check_writable(target)
    _refuse_existing(target, overwrite)
    waiting: Callable[[str], None] | None = (lambda owner: None) if if_running == "wait" else None
    with lease.hold(target / STAGING, waiting) as held:
        publish.recover(target)
        _refuse_existing(target, overwrite)
        folder = target / STAGING / f"{REPAIR_PREFIX}{secrets.token_hex(4)}"
        new = folder / NEW_FOLDER
        try:
            with naming_the_path(new):
                new.mkdir(parents=True)
            manifest = _write_all(new, parts, _Given(schema, tuple(classes) if classes else None, store, compression), limits)
            held.check()
            publish.publish(new, target)
        finally:
            if folder.exists() and not publish.is_taking_its_place(folder):
                with contextlib.suppress(OSError):  # the next one that writes deletes it
                    discard(folder)
    seconds = round(time.monotonic() - began, 3)
    return WriteResult(manifest.samples, manifest.shards, manifest.bytes, seconds, manifest.fingerprint)


def _refuse_bad_names(parts: Mapping[str, object]) -> None:
    bad = [name for name in parts if not isinstance(name, str) or not is_split_name(name)]
    if bad:
        raise UsageError(f"split name {bad[0]!r} must be made of letters, digits, _ and .")
    if not parts:
        raise UsageError("no split was given; give an iterable of samples, or one for each split by name")


def _refuse_existing(target: Path, overwrite: bool) -> None:
    if not overwrite and (target / MANIFEST).exists():
        raise DatasetError(f"{printable(str(target))}: holds a dataset; overwrite=True replaces it")


@dataclass(frozen=True)
class _Limits:
    """When a shard is full."""

    bytes: int
    samples: int

    @classmethod
    def of(cls, shard_size: int | None, samples_per_shard: int | None) -> _Limits:
        check_shards(shard_size, samples_per_shard)
        if samples_per_shard is not None:
            return cls(1 << 62, samples_per_shard)
        return cls(shard_size or SHARD_BYTES, 1 << 62)


@dataclass(frozen=True)
class _Given:
    """What the caller says of the fields."""

    schema: pa.Schema | None
    classes: tuple[str, ...] | None
    store: str | None
    compression: str


def _write_all(new: Path, parts: Mapping[str, Iterable[Sample]], given: _Given, limits: _Limits) -> Manifest:
    """Write the shards, the tables and the manifest."""
    stream = _stream(parts)
    first = list(islice(stream, FIRST_SAMPLES))
    if not first:
        raise InputError("there is no sample to write")
    fields = _Fields([sample for _, sample in first], given)
    keys = _Keys(fields.layout.columns.get_field_index("variant"))
    compression = _compression(given.compression, fields.layout)
    series: dict[str, ShardSeries] = {}
    counts = {name: np.zeros(len(given.classes or ()), np.int64) for name in parts}
    try:
        for number, (name, sample) in enumerate(chain(first, stream)):
            if name not in series:
                _finish_last(series)
                series[name] = ShardSeries(new, fields.layout, name, compression, limits.bytes, limits.samples)
            values = fields.values(sample, number)
            keys.add(values)
            series[name].add(values, row_size(values))
            if given.classes and (label := values[fields.label]) is not None:
                counts[name][label] += 1
        _finish_last(series)
    except BaseException:
        for each in series.values():
            each.abandon()
        raise
    entries = [entry for each in series.values() for entry in each.entries]
    keys.refuse_repeated([new / entry.path for entry in entries])
    class_counts = {name: counts[name].tolist() for name in series} if given.classes else None
    settings = {"made_by": MADE_BY, "shard_size": limits.bytes, "samples_per_shard": limits.samples}
    return finish(new, fields.final_layout, entries, compression, settings, class_counts)


def _stream(parts: Mapping[str, Iterable[Sample]]) -> Iterator[tuple[str, Sample]]:
    """Yield the samples of all splits, each with the name of its split. Raises InputError if one of several has none."""
    for name, part in parts.items():
        is_empty = True
        for sample in part:
            is_empty = False
            yield name, sample
        if is_empty and len(parts) > 1:
            raise InputError(f"the split {name} has no sample; leave it out, or give it some")


def _finish_last(series: Mapping[str, ShardSeries]) -> None:
    if series:
        list(series.values())[-1].close()


def _compression(text: str, layout: Layout) -> Compression:
    if text != "auto":
        return Compression.parse(text)
    return Compression.parse("none" if layout.image else "zstd:3")  # as for a conversion: recipe.py


_FEW = 1000
"""Hashes of several samples whose keys are compared at a time."""


class _Keys:
    """The keys of all samples, 8 bytes each: ten million are 80 MB. `variant` is the place of that column in a row, or -1.

    Samples that are variants of one record have the same key.
    """

    def __init__(self, variant: int) -> None:
        self._variant = variant
        self._hashes = array("Q")

    def add(self, values: tuple[Any, ...]) -> None:
        """Take the key of the next sample, whose row is `values`."""
        self._hashes.append(xxhash.xxh3_64_intdigest(self._name(values[0], values[self._variant])))

    def _name(self, key: str, variant: Any) -> bytes:
        name = key if self._variant < 0 else f"{variant} {key}"
        return name.encode("utf-8", "surrogatepass")

    def refuse_repeated(self, shards: Sequence[Path]) -> None:
        """Raise InputError if two samples have the same key.

        Equal hashes prove nothing: such keys are read from the shards and compared.
        """
        ordered = np.sort(np.frombuffer(self._hashes, np.uint64))
        again = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
        for start in range(0, len(again), _FEW):
            self._compare(shards, again[start : start + _FEW])

    def _compare(self, shards: Sequence[Path], wanted: npt.NDArray[np.uint64]) -> None:
        """Compare the keys that have some hashes; the rows of the shards are in the order of the samples."""
        hashes, first = np.frombuffer(self._hashes, np.uint64), 0
        seen: dict[bytes, int] = {}
        for block in chain.from_iterable(ShardReader(path).blocks() for path in shards):
            for row in np.flatnonzero(np.isin(hashes[first : first + block.num_rows], wanted)).tolist():
                key = block.column("key")[row].as_py()
                name = self._name(key, None if self._variant < 0 else block.column("variant")[row].as_py())
                if name in seen:
                    raise InputError(
                        f"sample {first + row:,} has the key {printable(key)}, and sample {seen[name]:,} has it too; give every"
                        " sample a key of its own (those without one have their number)"
                    )
                seen[name] = first + row
            first += block.num_rows


class ShardSeries:
    """Writes the rows of one split into one shard after the other; one block is in memory. `entries` are the shards so far."""

    def __init__(
        self, folder: Path, layout: Layout, split: str, compression: Compression, most_bytes: int, most_samples: int
    ) -> None:
        self._folder, self._layout, self._split, self._compression = folder, layout, split, compression
        self._most_bytes, self._most_samples = most_bytes, most_samples
        self._sink: StreamedFile | None = None
        self._writer: ShardWriter | None = None
        self._rows = self._raw_bytes = 0
        self.entries: list[ShardEntry] = []

    def add(self, values: tuple[Any, ...], size: int) -> None:
        """Append one row: `values` in the order of the columns, `size` about their bytes. Raises StorageError."""
        with naming_the_path(self._path):
            if self._writer is None or self._sink is None:
                self._sink = StreamedFile(self._path)
                schema = shard_schema(self._layout, self._split, len(self.entries))
                self._writer = ShardWriter(self._sink, schema, self._compression)
            self._writer.add(values, size)
            self._rows += 1
            self._raw_bytes += size
            waiting = self._raw_bytes - self._writer.raw_bytes  # a shard may be smaller than a block
            full = self._rows >= self._most_samples or max(self._sink.tell(), waiting) >= self._most_bytes
        if full:
            self.close()

    def close(self) -> None:
        """End the shard that is being written, if there is one. Raises StorageError."""
        if self._writer is None or self._sink is None:
            return
        with naming_the_path(self._path):
            blocks = self._writer.finish()
            self._sink.sync()
            self._sink.close()
        facts = ShardFacts(sum(blocks), self._sink.tell(), self._writer.raw_bytes, self._sink.sha256, blocks)
        self.entries.append(ShardEntry.of_written(self._split, self._path.name, facts))
        self._writer, self._sink, self._rows, self._raw_bytes = None, None, 0, 0

    def abandon(self) -> None:
        """Close the file of the shard that is being written, which is of no use."""
        if self._sink is not None:
            with contextlib.suppress(OSError):
                self._sink.close()
            self._writer, self._sink = None, None

    @property
    def _path(self) -> Path:
        return self._folder / shard_name(self._split, len(self.entries))


class _Fields:
    """The columns of a dataset, found in its first samples, and what makes a row of a sample."""

    def __init__(self, first: list[Sample], given: _Given) -> None:
        for number, sample in enumerate(first):
            _refuse_no_sample(sample, number)
        self._schema, self._classes = given.schema, given.classes
        names = list(given.schema.names) if given.schema is not None else list(dict.fromkeys(chain.from_iterable(first)))
        names = [name for name in names if name != "key"]
        self._names = frozenset((*names, "key"))
        self._store: Store | None = None
        self._shape: tuple[int, int, int] | None = None
        columns = [pa.field("key", pa.string())]
        for name in names:
            values = [sample.get(name) for sample in first]
            if name == "image":
                columns.append(pa.field(name, self._image_type(values, given.store)))
            elif name == "label" and given.classes:
                columns.append(pa.field(name, pa.int64()))
            else:
                columns.append(given.schema.field(name) if given.schema is not None else pa.field(name, _found(name, values)))
        if given.classes and "label" not in names:
            raise UsageError("classes name the values of label, and the samples have none")
        if given.store and self._store is None:
            raise UsageError(f"store {given.store} is for images, and the samples have none")
        self._shapes: set[tuple[int, int, int]] = set()
        kind = "image" if self._store else "text"
        role = Image(str(self._store), self._shape) if self._store else None
        self.layout = Layout.by_name(kind, pa.schema(columns), role, given.classes)
        self.label = self.layout.columns.get_field_index("label")

    @property
    def final_layout(self) -> Layout:
        """The layout with the decoded shape that all images turned out to share."""
        if self._store is None:
            return self.layout
        return self.layout.with_shape(next(iter(self._shapes)) if len(self._shapes) == 1 else None)

    def _image_type(self, values: list[Any], store: str | None) -> pa.DataType:
        type_ = self._schema.field("image").type if self._schema is not None else None
        value = next((value for value in values if value is not None), None)
        raw = isinstance(type_, pa.FixedShapeTensorType)
        kept = isinstance(value, bytes)
        self._store = Store.parse(store or ("source" if kept else "raw"))
        if kept != (self._store.name == "source") or (type_ is not None and raw != (self._store.name == "raw")):
            came = "encoded images are kept as they are (store source)" if kept else "pixels cannot be kept as source"
            raise UsageError(f"store {self._store} does not fit the field image: {came}")
        if self._store.name != "raw":
            return ENCODED_IMAGE
        _refuse_no_pixels(value, "sample 0" if values[0] is not None else "a sample")
        self._shape = tuple(type_.shape) if raw else value.shape  # type: ignore[union-attr]  # raw: it is a tensor
        assert self._shape is not None, "of pixels"
        return image_tensor(self._shape)

    def values(self, sample: Sample, number: int) -> tuple[Any, ...]:
        """Return the row of a sample. Raises InputError."""
        _refuse_no_sample(sample, number)
        key = sample.get("key", f"{number:09d}")
        if not isinstance(key, str) or not key:
            raise InputError(f"sample {number:,}: its key is {describe(key)}; it must be a string")
        who = f"sample {number:,} ({printable(key)})"
        odd = next((name for name in sample if name not in self._names), None)
        if odd is not None:
            known = "the schema does not have" if self._schema is not None else "the first samples do not have; give a schema"
            raise InputError(f"{who} has a field {printable(str(odd))}, which {known}")
        return (key, *(self._value(field, sample.get(field.name), key, who) for field in list(self.layout.columns)[1:]))

    def _value(self, field: pa.Field, value: Any, key: str, who: str) -> Any:
        try:
            if field.name == "image" and self._store is not None:
                return self._image(value, key, who)
            if field.name == "label" and self._classes:
                return self._class_of(value)
            plain = plain_value(value)
            check_fit(plain, field.type)
            return plain
        except UnfitValue as problem:
            raise InputError(
                f"{who}: the field {printable(field.name)} is {problem}; its column is of type {field.type}"
            ) from problem
        except Rejection as rejection:
            raise InputError(f"{who}: {rejection.message}") from rejection

    def _image(self, value: Any, key: str, who: str) -> Any:
        assert self._store is not None, "of images"
        if self._store.name == "source":
            if not isinstance(value, bytes):
                raise UnfitValue(describe(value))
            opened = image.open_image(value)
            image.check(opened)
            self._remember((opened.size[1], opened.size[0], 3))
            return value, key
        _refuse_no_pixels(value, who)
        self._remember(value.shape)
        if self._store.name == "raw":
            if value.shape != self._shape:
                raise InputError(f"{who}: its image is {describe(value)}, others are {self._shape}; store raw needs one size")
            return value
        return self._store.encode(value), (key.rpartition(".")[0] or key) + self._store.suffix

    def _remember(self, shape: tuple[int, int, int]) -> None:
        if len(self._shapes) < 2:
            self._shapes.add(shape)

    def _class_of(self, value: Any) -> int | None:
        assert self._classes is not None, "labels are numbers of classes"
        if value is None:
            return None
        if isinstance(value, str) and value in self._classes:
            return self._classes.index(value)
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or not 0 <= value < len(self._classes):
            raise UnfitValue(f"{describe(value)}, and no class")
        return int(value)


def _refuse_no_sample(sample: Any, number: int) -> None:
    if not isinstance(sample, dict) or not all(isinstance(name, str) for name in sample):
        raise InputError(f"sample {number:,} is {describe(sample)}; a sample is a dict of field name to value")


def _refuse_no_pixels(value: Any, who: str) -> None:
    fits = isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray) and value.dtype == np.uint8
    if not fits or value.ndim != 3 or value.shape[2] != 3 or not value.size:
        raise InputError(
            f"{who}: its image is {describe(value)}; it must be a numpy array of shape (height, width, 3) and type uint8, or"
            " the bytes of an image file, the same in all samples"
        )


def _found(name: str, values: list[Any]) -> pa.DataType:
    """Return the type of a column in which all values come out as they went in. Raises InputError if there is none."""
    plain = []
    for number, value in enumerate(values):
        try:
            plain.append(plain_value(value))
        except UnfitValue as problem:
            raise InputError(f"sample {number:,}: the field {printable(name)} is {problem}, which no column holds") from problem
    for several in (plain, list(map(python_value, plain))):
        with contextlib.suppress(pa.ArrowException, OverflowError, ValueError, TypeError):
            type_ = column_type(pa.array(several).type)
            for value in plain:
                check_fit(value, type_)
            return type_
    raise InputError(f"the field {printable(name)} has values of several types in the first samples; give a schema")


# --- the tables and the manifest of shards that are there ---


def making_of(
    layout: Layout, fields: dict[str, Any], recipe: dict[str, Any], settings: dict[str, Any], parts: dict[str, str]
) -> Making:
    """Return how a dataset without a source was made."""
    return Making(layout.to_json(), fields, recipe, settings, parts)


def write_tables(folder: Path, entries: Sequence[ShardEntry], making: Making) -> dict[str, FileFacts]:
    """Write all tables of a dataset without a source, of whose shards are the `entries`, and return what they are."""
    empty = ((FILES, pa.schema(FILE_FIELDS)), (PLAN, PLAN_SCHEMA))
    for name, schema in empty:
        with replacing(folder / name) as sink, pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema):
            pass
    write_atomically(folder / REJECTS, b"")
    with ShardSpool(folder.parent) as shards:
        for entry in entries:
            shards.add(entry)
        shards.write_table(folder / SHARDS, making)
        return sum_up(folder, shards.sums())


def finish(
    folder: Path,
    layout: Layout,
    entries: Sequence[ShardEntry],
    compression: Compression,
    settings: dict[str, Any],
    class_counts: dict[str, list[int]] | None = None,
) -> Manifest:
    """Complete the folder of a dataset whose shards are there: write its tables, and its manifest last."""
    recipe: dict[str, Any] = {
        "kind": layout.kind,
        "store": layout.image.store if layout.image else None,
        "compression": str(compression),
        "transform": [],
    }
    digest = hashlib.sha256(json.dumps([[entry.path, entry.sha256] for entry in entries]).encode()).hexdigest()[:32]
    parts = {WRITTEN_PART: digest}
    files = write_tables(folder, entries, making_of(layout, layout.fields(), recipe, settings, parts))
    samples = sum(entry.rows for entry in entries)
    manifest = Manifest(
        kind=layout.kind,
        samples=samples,
        shards=len(entries),
        bytes=sum(entry.bytes for entry in entries),
        inputs=samples,
        rejected=0,
        splits=tuple(_splits(entries)),
        schema=tuple((f.name, str(f.type)) for f in layout.columns),
        fields=layout.fields(),
        recipe=recipe,
        settings=settings,
        fingerprint=fingerprint(parts),
        fingerprint_parts=parts,
        sources=(),
        files=files,
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        shardctl_version=__version__,
        class_counts=class_counts,
    )
    write_atomically(folder / MANIFEST, manifest.to_json().encode())
    return manifest


def _splits(entries: Sequence[ShardEntry]) -> Iterator[SplitFacts]:
    for name in dict.fromkeys(entry.split for entry in entries):
        own = [entry for entry in entries if entry.split == name]
        yield SplitFacts(name, sum(entry.rows for entry in own), len(own), sum(entry.bytes for entry in own))
