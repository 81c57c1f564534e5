"""Images and masks: decoded, transformed, and put into a batch."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import DamageError, DatasetError, Rejection, ShardctlError, is_of_bytes
from shardctl.format.arrays import Array, Bytes, Numbers, Shape
from shardctl.format.roles import Mask, Roles
from shardctl.format.shard import VERIFY_ADVICE
from shardctl.images.codecs import image
from shardctl.images.codecs.jpeg import JpegDecoder, decode_plain, decode_plain_alone
from shardctl.images.defaults import MAX_PIXELS
from shardctl.loader.blocks.column import Column, is_missing
from shardctl.loader.blocks.convert import Converter, Misfit
from shardctl.loader.blocks.gather import Located, in_array
from shardctl.loader.blocks.locate import Samples
from shardctl.loader.blocks.memory import BatchMemory
from shardctl.loader.blocks.shards import Shards
from shardctl.loader.blocks.transforms import Transforms

_DENSEST = {b"\xff\xd8": 64, b"\x89P": 1032, b"RI": 26_000}
"""Pixels for each byte of the plainest image, one colour all over, that is written as JPEG, PNG and
WebP."""


def most_pixels(recipe: Mapping[str, Any]) -> int:
    """Return how many pixels an image may have that a dataset keeps as it came, given the recipe
    that its manifest records.

    `shardctl.write` has the usual limit, and records none.
    """
    said = recipe.get("max_pixels")
    return max(said, MAX_PIXELS) if type(said) is int else MAX_PIXELS


def limit_of(column: Column, data: Bytes, most: int) -> int:
    """Return how many pixels an encoded image of a column may have: so many are decoded, whatever a
    damaged header says.

    They are known where all images have one size. Else they are `most`, which is that of
    `most_pixels`, or what so many bytes can hold: a recipe or a program may have made images larger
    than those it reads.
    """
    shape = column.picture_shape
    if shape is not None:
        return shape[0] * shape[1]
    return max(most, len(data) * _DENSEST.get(data[:2].tobytes(), 0))


class PictureReader:
    """Decodes the images and masks of batches. Threads may share it.

    At most `cache_bytes` of decoded images are kept. When they are full, what is there stays: an
    epoch reads every sample once, so the image that was used last is needed last, and a newer image
    is not worth more.
    """

    def __init__(self, shards: Shards, transforms: Transforms, cache_bytes: int) -> None:
        self._shards, self._transforms = shards, transforms
        self._keep_truncated = shards.manifest.recipe.get("truncated") == "keep"
        self._most = most_pixels(shards.manifest.recipe)
        self._keeps_decoded, self._left = cache_bytes > 0, cache_bytes
        self._kept: dict[tuple[str, int], Bytes] = {}
        self._lock = threading.Lock()
        self._hits = self._misses = 0
        self._local = threading.local()

    def counts(self) -> dict[str, int]:
        """Return the hits and misses of the cache of decoded images."""
        return {"image_hits": self._hits, "image_misses": self._misses}

    def read(
        self,
        column: Column,
        located: Located,
        wanted: Samples,
        memory: BatchMemory,
        missing: Numbers | None = None,
        fill: float = 0,
    ) -> Array | list[Array]:
        """Return the images of a column: an array (n, *shape) if they share a shape, else a list of
        arrays.

        Masks that are `missing`, by their places, are filled; in a list they have the shape (0, 0).
        """
        transforms = self._transforms
        converter = Converter(transforms, column, column.pixel_dtype, wanted)
        shape = transforms.picture_shape(column)
        found: Array | list[Array]
        if shape is None:
            found = [np.empty((0, 0), converter.dtype) for _ in range(len(wanted))]
        else:
            found = memory.array(column.name, (len(wanted), *shape), converter.dtype)
            if missing is not None:
                found[missing] = fill
        plain = self._plain(column, wanted)
        left = np.ones(len(wanted), bool)
        left[plain] = False
        left[self._decode_plain(column, located, plain, converter, found)] = True
        if missing is not None:
            left[missing] = False
        rest = np.flatnonzero(left)
        in_place = None if shape is None or transforms.changes(column) else found
        for place, pixels in self._decoded(column, located, wanted, converter, in_place, rest):
            if shape is None:
                found[place] = converter.converted(pixels, place)
                continue
            own = found[place]
            if pixels.ctypes.data == own.ctypes.data and pixels.shape == shape:
                continue
            size = shape[1:] if transforms.puts_channels_first(column) else shape[:2]
            try:
                view = converter.cut(pixels, place)
                if view.shape[:2] != size:  # numpy repeats one row
                    raise ValueError(
                        f"it is {_size_text(view.shape)} (width x height), and all should be "
                        f"{_size_text(size)}"
                    )
                converter.write_one(view, place, own)
            except DatasetError as error:
                raise _faulty(column, wanted, place, str(error)) from error
            except ValueError as error:
                raise _faulty(column, wanted, place, f"{error}; {VERIFY_ADVICE}") from error
        return found

    def _plain(self, column: Column, wanted: Samples) -> list[int]:
        """Return the places of images that are known to be plain JPEG, so that they are decoded
        without a look at them first.

        No place where that has no use: images that are kept are decoded once, and Pillow decodes
        those smaller that are resized to a half or less.
        """
        role, shape = column.picture, column.picture_shape
        if role is None or isinstance(role, Mask) or self._keeps_decoded:
            return []
        if self._transforms.resize is not None:
            if shape is None:
                return []
            width, height = shape[1::-1]
            if image.is_reduced((width, height), self._transforms.resized_view(width, height)):
                return []
        if role.is_plain:
            return list(range(len(wanted)))
        of_main = column.name == self._shards.layout.roles.main_image
        known = self._shards.plain_images if of_main else None
        return [] if known is None else np.flatnonzero(known[wanted.numbers]).tolist()

    def _decode_plain(
        self,
        column: Column,
        located: Located,
        plain: list[int],
        converter: Converter,
        found: Array | list[Array],
    ) -> list[int]:
        """Decode plain images into `found`: in their places where nothing is changed, else by way
        of the memory of this thread.

        Returns the places of those that the slow way must look at.
        """
        changes, in_list = self._transforms.changes(column), isinstance(found, list)
        shape, failed = column.picture_shape, []
        # memory of this thread; else that of the largest one that the slow way has decoded
        decoder = self._jpeg_decoder()
        scratch = decoder.scratch if shape is None else decoder.memory(shape)
        for place, data in located.views(plain):
            if changes:
                pixels = decode_plain(data, scratch)
            elif in_list:
                pixels = decode_plain_alone(data, self._most)
            else:
                pixels = decode_plain(data, found[place])
            if pixels is None or (shape is not None and pixels.shape != shape):
                failed.append(place)
            elif in_list and not changes:
                found[place] = pixels
            elif changes:
                try:
                    if in_list:
                        found[place] = converter.converted(pixels, place)
                    else:
                        converter.write(converter.view(pixels, place), found[place])
                except (Misfit, DatasetError, ValueError):
                    failed.append(place)
        return failed

    def _decoded(
        self,
        column: Column,
        located: Located,
        wanted: Samples,
        converter: Converter,
        out: Any,
        places: Numbers,
    ) -> Iterator[tuple[int, image.Pixels]]:
        """Yield the images at these places, decoded and resized: into its row of `out` where that
        is given and it fits."""
        if not len(places):
            return
        numbers = wanted.numbers[places].tolist()
        rows = zip(places.tolist(), located.at(places).rows(), numbers, strict=True)
        for place, data, number in rows:
            pixels = self._kept.get((column.name, number))
            if self._keeps_decoded:
                self._hits += pixels is not None
                self._misses += pixels is None
            if pixels is None:
                try:
                    own = out[place] if out is not None else None
                    pixels = self._decode(column, data, converter, place, own)
                except Exception as error:
                    if isinstance(error, DatasetError):
                        why = str(error)
                    elif isinstance(error, Rejection):
                        why = f"{why_undecoded(column, error)}; {VERIFY_ADVICE}"
                    elif isinstance(error, ShardctlError) or not is_of_bytes(error):
                        raise
                    else:
                        name = type(error).__name__
                        why = f"it does not decode: {name}: {error}; {VERIFY_ADVICE}"
                    raise _faulty(column, wanted, place, why) from error
                if self._left >= pixels.nbytes:
                    with self._lock:
                        if self._left >= pixels.nbytes and (column.name, number) not in self._kept:
                            self._kept[column.name, number] = np.array(pixels)
                            self._left -= pixels.nbytes
            yield place, pixels

    def _decode(
        self,
        column: Column,
        data: Bytes,
        converter: Converter,
        place: int,
        out: image.Pixels | None,
    ) -> image.Pixels:
        """Decode one image or mask, in the size that is wanted: no more of it than the crop, unless
        it is kept for other crops.

        Raises Rejection, DatasetError if it is too small or too large, and whatever a decoder
        raises.
        """
        limit = limit_of(column, data, self._most)
        look = converter.whole_look if self._keeps_decoded else converter.look
        if isinstance(column.picture, Mask):
            values = image.decode_mask(data.tobytes(), limit, self._keep_truncated)
            if self._transforms.resize:
                values = image.seen(values, look(values.shape[::-1], place))
            return values
        if self._transforms.resize is not None:
            opened = image.open_image(data.tobytes(), limit, self._keep_truncated)
            return image.render(opened, look(opened.size, place))
        try:
            pixels = self._jpeg_decoder().decode(data, out, limit)
        except Exception:  # noqa: BLE001 - the slow way decides about what the fast one cannot read
            pixels = None
        return (
            image.decode(data.tobytes(), limit, self._keep_truncated) if pixels is None else pixels
        )

    def _jpeg_decoder(self) -> JpegDecoder:
        if not hasattr(self._local, "decoder"):
            self._local.decoder = JpegDecoder()
        decoder: JpegDecoder = self._local.decoder
        return decoder


def _size_text(shape: Shape) -> str:
    return f"{shape[1]}x{shape[0]}"


def why_undecoded(column: Column, rejection: Rejection) -> str:
    """Say why an image or a mask of a column was not decoded."""
    if not isinstance(rejection, image.TooManyPixels):
        return f"it does not decode: {rejection.message}"
    width, height = rejection.size
    if column.picture_shape is None:
        return f"its header says {width} x {height} pixels, more than any image here has"
    return (
        f"it is {width}x{height} (width x height), and all should be "
        f"{_size_text(column.picture_shape)}"
    )


def missing_images(values: pa.Array) -> Numbers:
    """Return which images of an Arrow array have no bytes."""
    return np.flatnonzero(is_missing(values) | is_missing(values.field("bytes")))


def encoded_images(column: Column, values: pa.Array, wanted: Samples) -> Located:
    """Return where the bytes of images lie in an Arrow array. Raises DamageError for samples that
    have none."""
    lost = missing_images(values)
    if len(lost):
        where = wanted.name_of(int(lost[0]))
        raise DamageError(f"{where}: {column.name} is missing; {VERIFY_ADVICE}", lost)
    return in_array(values.field("bytes"))


def _faulty(column: Column, wanted: Samples, place: int, why: str) -> DamageError:
    return wanted.unreadable(place, f"{column.name}: {why}")


HEADER_FIELDS = {name: pa.int64() for name in ("width", "height", "image_bytes")}
"""What can be asked of images and masks: their size in pixels, and the bytes that are stored."""


HEADER = pa.struct(list(HEADER_FIELDS.items()))
"""The fields of a header together."""


def askable_headers(roles: Roles) -> dict[str, pa.DataType]:
    """Return what a condition may ask of images: NAME.width, … of each field, and width, … of the
    main one alone."""
    of_main = HEADER_FIELDS if roles.main_image is not None else {}
    return {**of_main, **dict.fromkeys(roles.images, HEADER)}


def headers_of(column: Column, values: pa.Array) -> pa.StructArray:
    """Return the header of every image of a column, of type HEADER; its fields are null where it
    cannot be read."""
    if column.shape:
        known = {"width": column.shape[1], "height": column.shape[0], "image_bytes": column.width}
        return pa.array([known] * len(values), HEADER)
    return pa.array([_header(data.as_py()) for data in values.field("bytes")], HEADER)


def _header(data: bytes | None) -> dict[str, Any] | None:
    if data is None:
        return None
    width = height = None
    with suppress(Rejection):
        width, height = image.open_image(data, max_pixels=2**62).size
    return {"width": width, "height": height, "image_bytes": len(data)}
