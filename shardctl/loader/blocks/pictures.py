"""Images and masks: decoded, transformed, and put into a batch."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from PIL import Image

from shardctl.errors import DamageError, Rejection, ShardctlError, is_of_bytes
from shardctl.format.arrays import Array, Bytes, Numbers, Shape
from shardctl.format.roles import Mask, Roles
from shardctl.format.shard import VERIFY_ADVICE
from shardctl.images.codecs import image
from shardctl.images.codecs.jpeg import (
    JpegDecoder,
    decode_plain,
    decode_plain_alone,
    plain_size,
)
from shardctl.images.defaults import MAX_PIXELS
from shardctl.images.geometry import View
from shardctl.loader.blocks.column import Column, is_missing
from shardctl.loader.blocks.gather import Located, in_array
from shardctl.loader.blocks.locate import Samples
from shardctl.loader.blocks.shards import Shards
from shardctl.loader.blocks.transforms import Converter, Misfit, Transforms

if TYPE_CHECKING:
    from shardctl.loader.blocks.picture_steps import BatchSteps
    from shardctl.transforms.image.views import Cuts

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
        self._kept: dict[tuple[str, int], Array] = {}
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
        missing: Numbers | None = None,
        fill: float = 0,
    ) -> Array | list[Array]:
        """Return the images of a column: an array (n, *shape) if they share a shape, else a list of
        arrays.

        Masks that are `missing`, by their places, are filled; in a list they have the shape (0, 0).
        """
        transforms = self._transforms
        converter = Converter(transforms, column, column.pixel_dtype)
        shape = transforms.picture_shape(column)
        found: Array | list[Array]
        if shape is None:
            found = [np.empty((0, 0), converter.dtype) for _ in range(len(wanted))]
        else:
            found = wanted.memory.array(column.name, (len(wanted), *shape), converter.dtype)
            if missing is not None:
                found[missing] = fill
        left, cuts = np.ones(len(wanted), bool), self._cuts(column, wanted.steps)
        if column.is_encoded_picture:
            plain = self._plain(column, wanted)
            left[plain] = False
            left[self._decode_plain(column, located, wanted, plain, converter, cuts, found)] = True
        elif cuts is not None and missing is None:
            dtype, stored = column.pixel_dtype, column.shape
            for place, row in enumerate(located.rows()):
                pixels = row.view(dtype).reshape(stored)
                converter.write_one(cuts.of(pixels, place), place, found[place])
            return found
        if missing is not None:
            left[missing] = False
        rest = np.flatnonzero(left)
        in_place = None if shape is None or transforms.changes(column) else found
        for place, pixels in self._made(column, located, wanted, in_place, rest):
            if shape is None:
                found[place] = converter.converted(pixels, place)
                continue
            own = found[place]
            if (
                in_place is not None
                and pixels.ctypes.data == own.ctypes.data
                and pixels.shape == shape
            ):
                continue
            size = shape[1:] if transforms.puts_channels_first(column) else shape[:2]
            if pixels.shape[:2] != size:  # numpy repeats one row
                why = f"{_other_size(pixels.shape, size)}; {VERIFY_ADVICE}"
                raise wanted.unreadable(place, f"{column.name}: {why}")
            converter.write_one(pixels, place, own)
        return found

    def converted(
        self, column: Column, images: Sequence[Array | None], wanted: Samples
    ) -> Array | list[Array | None]:
        """Return pixels as `read` does: an array if they share a shape and none is missing."""
        converter = Converter(self._transforms, column, column.pixel_dtype)
        shape = self._transforms.picture_shape(column)
        made: list[Array | None] = [
            None if each is None else converter.converted(each, place)
            for place, each in enumerate(images)
        ]
        there = [each for each in made if each is not None]
        if shape is None or len(there) < len(made):
            return made
        out = wanted.memory.array(column.name, (len(made), *shape), converter.dtype)
        return np.stack(there, out=out) if there else out

    def _cuts(self, column: Column, steps: BatchSteps | None) -> Cuts | None:
        """Return what is seen of images that share a size, if they are only cut and mirrored."""
        shape = column.picture_shape
        if steps is None or shape is None or self._keeps_decoded:
            return None
        return steps.cuts((shape[1], shape[0]))

    def _plain(self, column: Column, wanted: Samples) -> list[int]:
        """Return the places of images that are known to be plain JPEG, so that they are decoded
        without a look at them first.

        No place where that has no use: images that are kept are decoded once, and steps that change
        pixels take images of Pillow's.
        """
        role = column.picture
        if role is None or isinstance(role, Mask) or self._keeps_decoded:
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
        wanted: Samples,
        plain: list[int],
        converter: Converter,
        cuts: Cuts | None,
        found: Array | list[Array],
    ) -> list[int]:
        """Decode plain images into `found`: in their places where nothing is changed, else by way
        of the memory of this thread.

        Returns the places of those that the slow way must look at: damaged ones, and all where steps
        do more than to cut and to mirror images of one size.
        """
        if wanted.steps is not None and cuts is None:
            return plain
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
            if pixels is not None and shape in (None, pixels.shape):
                try:
                    if cuts is not None:
                        pixels = cuts.of(pixels, place)
                    if in_list:
                        found[place] = converter.converted(pixels, place) if changes else pixels
                    elif changes:
                        converter.write(pixels, found[place])
                    continue
                except (Misfit, ValueError):
                    pass  # the slow way has words for it
            failed.append(place)
        return failed

    def _made(
        self,
        column: Column,
        located: Located,
        wanted: Samples,
        out: Any,
        places: Numbers,
    ) -> Iterator[tuple[int, Array]]:
        """Yield the images at these places after the steps: into its row of `out` where that is
        given and it fits."""
        if not len(places):
            return
        numbers = wanted.numbers[places].tolist()
        steps = wanted.steps
        rows = zip(places.tolist(), located.at(places).rows(), numbers, strict=True)
        for place, data, number in rows:
            try:
                own = out[place] if out is not None else None
                if self._keeps_decoded and column.is_encoded_picture:
                    whole = self._of_kept(column, data, number)
                    pixels = whole if steps is None else _changed(column, whole, steps, place)
                else:
                    pixels = self._image(column, data, steps, place, own)
            except Exception as error:
                if isinstance(error, Rejection):
                    why = why_not_made(column, error, "" if steps is None else steps.step)
                elif isinstance(error, ShardctlError) or not is_of_bytes(error):
                    raise
                else:
                    name = type(error).__name__
                    why = f"it does not decode: {name}: {error}; {VERIFY_ADVICE}"
                raise wanted.unreadable(place, f"{column.name}: {why}") from error
            yield place, pixels

    def _image(
        self, column: Column, data: Bytes, steps: BatchSteps | None, place: int, out: Any
    ) -> Array:
        """Return one image or mask after the steps. Raises Rejection, and whatever a decoder
        raises."""
        if steps is None:
            return self._decoded(column, data, out)
        if not column.is_encoded_picture or isinstance(column.picture, Mask):
            return _changed(column, self._decoded(column, data, None), steps, place)
        opened, size = None, plain_size(data)
        if size is None:
            opened = self._opened(column, data)
            size = opened.size
        look = steps.begin(place, size).look
        if opened is None and not steps.steps.others and isinstance(look, View) and look.is_cut:
            return look.cut_out(self._decoded(column, data, None))
        opened = opened or self._opened(column, data)
        return steps.finish(place, size, image.decoded(opened, look))

    def _of_kept(self, column: Column, data: Bytes, number: int) -> Array:
        """Return all pixels of an image or a mask, which are kept where there is room."""
        kept = self._kept.get((column.name, number))
        self._hits += kept is not None
        self._misses += kept is None
        if kept is not None:
            return kept
        pixels = self._decoded(column, data, None)
        if self._left >= pixels.nbytes:
            with self._lock:
                if self._left >= pixels.nbytes and (column.name, number) not in self._kept:
                    self._kept[column.name, number] = np.array(pixels)
                    self._left -= pixels.nbytes
        return pixels

    def _opened(self, column: Column, data: Bytes) -> image.Opened:
        limit = limit_of(column, data, self._most)
        return image.open_image(data.tobytes(), limit, self._keep_truncated, pixels_only=True)

    def _decoded(self, column: Column, data: Bytes, out: image.Pixels | None) -> Array:
        """Return all pixels of an image or a mask. Raises Rejection, and whatever a decoder
        raises."""
        if not column.is_encoded_picture:
            return data.view(column.pixel_dtype).reshape(column.shape)
        limit = limit_of(column, data, self._most)
        if isinstance(column.picture, Mask):
            return image.decode_mask(data.tobytes(), limit, self._keep_truncated)
        try:
            decoded = self._jpeg_decoder().decode(data, out, limit)
        except Exception:  # noqa: BLE001 - the slow way decides about what the fast one cannot read
            decoded = None
        return (
            image.decode(data.tobytes(), limit, self._keep_truncated)
            if decoded is None
            else decoded
        )

    def _jpeg_decoder(self) -> JpegDecoder:
        if not hasattr(self._local, "decoder"):
            self._local.decoder = JpegDecoder()
        decoder: JpegDecoder = self._local.decoder
        return decoder


def _changed(column: Column, pixels: Array, steps: BatchSteps, place: int) -> Array:
    """Return all pixels of an image or a mask after the steps. Raises Rejection."""
    if isinstance(column.picture, Mask):
        return steps.mask(pixels, place, column.picture)
    size = (pixels.shape[1], pixels.shape[0])
    look = steps.begin(place, size).look
    if not steps.steps.others and isinstance(look, View) and look.is_cut:
        return look.cut_out(pixels)
    return steps.finish(place, size, Image.fromarray(pixels))


def _other_size(found: Shape, wanted: Shape) -> str:
    return (
        f"it is {found[1]}x{found[0]} (width x height), and all should be {wanted[1]}x{wanted[0]}"
    )


def why_not_made(column: Column, rejection: Rejection, step: str) -> str:
    """Say why an image or a mask of a column was not decoded, or what a step could not do."""
    if rejection.stage != "decode":
        return f"{step}: {rejection.message}"
    why = f"it does not decode: {rejection.message}"
    if isinstance(rejection, image.TooManyPixels):
        width, height = rejection.size
        why = f"its header says {width} x {height} pixels, more than any image here has"
        if column.picture_shape is not None:
            why = _other_size((height, width), column.picture_shape)
    return f"{why}; {VERIFY_ADVICE}"


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
    found = (data.as_py() for data in values.field("bytes"))
    return pa.array([None if data is None else facts_of(data) for data in found], HEADER)


def facts_of(data: bytes | None) -> dict[str, Any]:
    """Return width, height, stored bytes, format and mode of an encoded image; an `error` where it
    cannot be opened."""
    facts: dict[str, Any] = dict.fromkeys(("width", "height", "format", "image_bytes"))
    if data is None:
        return facts
    facts["image_bytes"] = len(data)
    try:
        opened = image.open_image(data, max_pixels=2**62)
    except Rejection as rejection:
        return {**facts, "error": rejection.message}
    facts["width"], facts["height"] = opened.size
    return {**facts, "format": opened.format, "mode": opened.mode}
