"""The images of the records of a table: their bytes, from the record or from the file that it
names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import numpy.typing as npt
import pyarrow as pa
import xxhash

from shardctl.errors import Rejection
from shardctl.format.arrays import is_list
from shardctl.format.roles import Mask, Sample
from shardctl.images.codecs import image
from shardctl.making.shards.inputs import (
    ReadRequest,
    digest_of,
    prefetched,
    read_beside,
    request_beside,
)
from shardctl.making.shards.job import Job
from shardctl.making.shards.planned import PlannedUnit
from shardctl.sources.boxes import holds_image
from shardctl.sources.files import resolved
from shardctl.system.locations import follow, parent_of, path_below
from shardctl.system.processes.worker_state import WorkerProgress
from shardctl.system.text import printable


class TableImages:
    """Finds the images of the records of units, one unit after the other.

    `digest` covers the files that images of the unit's samples were read from, None while there is
    none. `read` has the digests of those of the record that was taken last.
    """

    def __init__(self, job: Job, progress: WorkerProgress) -> None:
        self._job, self._progress = job, progress
        self._digest: xxhash.xxh3_64 | None = None
        # what a dataset has was looked at, or made before
        self._unmoved = () if job.recorded else columns_of_bytes(job)
        self.read: list[int] = []
        self.missing: Rejection | None = None

    def begin(self) -> None:
        """Begin with a unit."""
        self._digest, self.missing = None, None

    def take(self, fields: Sample, planned: PlannedUnit) -> Sample:
        """Return the fields of a record with its images, each as its bytes and its path. Raises
        Rejection.

        Those that are kept, and not what the recipe works on, were decoded once to see that they
        can be.
        """
        self.read = []
        self._progress.enter("read")
        filled = dict(fields)
        for name in self._job.kept_images:
            role = self._job.layout.roles.get(name)
            # not every image need have a mask
            if isinstance(role, Mask) and is_nothing(fields.get(name)):
                filled[name] = None
                continue
            data, path = self.find(fields.get(name), name, planned)
            self._progress.enter("decode")
            recipe = self._job.recipe
            if isinstance(role, Mask):
                try:
                    _check_mask(
                        image.decode_mask(data, recipe.max_pixels, recipe.keep_truncated), role
                    )
                except Rejection as rejection:
                    message = f"{printable(name)}: {rejection.message}"
                    raise Rejection(rejection.stage, rejection.error, message) from None
            else:
                image.check(recipe.open_image(data))
            filled[name] = {"bytes": data, "path": path}
        if self._job.main_image is not None:
            data, path = self.find(fields.get("image"), self._job.main_image, planned)
            filled["image"] = {"bytes": data, "path": path}
        for name in self._unmoved:
            if holds_image(fields.get(name)):
                message = (
                    f"{printable(name)}: its value is an image, which "
                    f"{self._job.recipe.moving[0].name} does not move, and the"
                    " first records have none there; keep it as it is with --unmoved "
                    f"{printable(name)}"
                )
                raise Rejection("decode", "unmoved-image", message)
        return filled

    def prefetched(
        self, records: Iterable[tuple[int, Sample]], planned: PlannedUnit
    ) -> Iterable[tuple[int, Sample]]:
        """Return the same records of a unit; files on a store that the following ones name are
        fetched meanwhile."""
        if not self._job.roots[planned.file.root].is_stored:
            return records
        return prefetched(records, lambda record: self._requests(record[1], planned))

    def _requests(self, fields: Sample, planned: PlannedUnit) -> list[ReadRequest]:
        requests = []
        for name in (*self._job.kept_images, "image" if self._job.main_image is not None else ""):
            value = fields.get(name)
            path = (
                value.get("path") if isinstance(value, dict) and not value.get("bytes") else value
            )
            if isinstance(path, str) and path:
                with contextlib.suppress(Rejection):
                    requests.append(request_beside(self._file(path, planned)))
        return requests

    def became_samples(self, read: list[int]) -> None:
        """A record became samples: its files, which were `read`, count for the digest of the
        unit."""
        for digest in read:
            self._digest = self._digest or xxhash.xxh3_64()
            self._digest.update(digest.to_bytes(8, "little"))

    def unit_digest(self, of_records: int) -> int:
        """Return the digest of a unit, from that of its records and those of the files that its
        samples' images are in."""
        if self._digest is None:
            return of_records
        return digest_of(of_records.to_bytes(8, "little") + self._digest.digest())

    def find(self, value: object, name: str, planned: PlannedUnit) -> tuple[bytes, str | None]:
        """Return the bytes of an image that a field has or names, and its path if one is given.
        Raises Rejection."""
        data, path = (
            (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
        )
        if isinstance(data, str):
            data, path = None, data
        if isinstance(data, bytes):
            return data, path
        if not path:
            keep = (
                "; --kind table --image-field none keeps such records, with images as plain bytes"
                if name in self._job.kept_images
                else ""
            )
            raise Rejection(
                "read", "no-image", f"it has no image in the field {printable(name)}{keep}"
            )
        try:
            found = read_beside(self._job, planned, self._file(path, planned), path)
        except Rejection as rejection:
            self.missing = self.missing or rejection
            raise
        self.read.append(digest_of(found))
        return found, path

    def _file(self, path: str, planned: PlannedUnit) -> str:
        """Return where the file lies that a record names. Raises Rejection if that is not below the
        source.

        A table may come from anywhere, and must not be able to put any file of this machine into a
        dataset.
        """
        if "://" in path:
            raise Rejection(
                "read",
                "not-a-path",
                f"its image is at {printable(path)}; only files are read, fetch them first",
            )
        if "\0" in path:
            raise Rejection(
                "read",
                "not-a-path",
                f"its image has the path {printable(path)}, which no file can have",
            )
        root = follow(self._job.roots[planned.file.root].path, ".")
        # Not resolved: a link in the source may lead anywhere, as in a folder of images. The person
        # made it, not the table.
        place = follow(parent_of(f"{root}/{planned.file.path}"), path)
        if not path_below(place, root) and path.startswith("/"):
            # the same place may have been named through a link
            place, root = resolved(place), resolved(root)
        if not path_below(place, root):
            message = (
                f"its image {printable(path)} is not below the source ({printable(root)}); "
                "give a source that contains it"
            )
            raise Rejection("read", "outside", message)
        return place


def _check_mask(values: npt.NDArray[Any], role: Mask) -> None:
    if values.dtype.itemsize * 8 > role.bits:
        message = (
            f"its mask has {values.dtype.itemsize * 8} bits for each pixel, and masks of "
            f"this column have {role.bits}"
        )
        raise Rejection("decode", "not-a-mask", message)


def columns_of_bytes(job: Job) -> tuple[str, ...]:
    """Return the columns with bytes that nothing says to be images, or to stay as they are; none
    where no step moves pixels."""
    if not job.recipe.moving:
        return ()
    moved = {
        "image",
        *job.kept_images,
        *job.recipe.unmoved,
        *job.layout.roles.by_name,
        *job.annotation_rules,
    }
    return tuple(f.name for f in job.layout.columns if f.name not in moved and _has_bytes(f.type))


def _has_bytes(type_: pa.DataType) -> bool:
    """Return whether values are bytes, or have some in lists and structs."""
    if pa.types.is_struct(type_):
        return any(_has_bytes(f.type) for f in type_)
    if is_list(type_):
        return _has_bytes(type_.value_type)
    return bool(
        pa.types.is_binary(type_)
        or pa.types.is_large_binary(type_)
        or pa.types.is_fixed_size_binary(type_)
    )


def is_nothing(value: object) -> bool:
    """Return whether a value of a column of images is missing: without bytes and without the path
    of a file."""
    return value is None or (
        isinstance(value, dict) and value.get("bytes") is None and not value.get("path")
    )
