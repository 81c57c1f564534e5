"""Images among the inputs that look like masks of other inputs. Names tell nearly all: few images are looked into."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shardctl.errors import Rejection
from shardctl.sources.annotations.inputs import stem
from shardctl.sources.annotations.listed import MOST_FOLDERS, Images, Listed, joined
from shardctl.sources.files import begin_of
from shardctl.system.locations.text import join, parent_of
from shardctl.system.sequences import evenly_spaced
from shardctl.system.text import printable

EACH = 4
"""Images of a folder that are looked at."""

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SURE = re.compile(r"(mask|label|annot|annotation|segmentation|trimap)s?$|segs?$")
"""Words for masks. Those of `_LIKELY` are also said of pictures, such as what a blurred one should become."""
_LIKELY = re.compile(
    rf"{_SURE.pattern}|^(gt|truth|groundtruth|semantics?|instances?|panoptic|parsing|segments?|silhouettes?|stuffthingmaps)$"
)
_OF_PICTURES = re.compile(
    r"^(depths?|disparity|disparities|disp|flow|thermal|infrared|ir|nir|swir|lwir|edges?|canny|sketch(es)?|lineart|contours?"
    r"|normals?|gr[ae]y|gr[ae]yscale|mono|monochrome|luma|heights?|dem|dsm|sar|heatmaps?|saliency|mattes?|alphas?)$"
)
"""Words for pictures that have one number for each pixel and are no masks of classes."""
_OF_IMAGES = frozenset(("image", "images", "img", "imgs", "rgb", "input", "inputs"))

_END_OF_MASK = re.compile(
    r"[ _.-](?:gt(?:fine|coarse)[ _.-])?"
    r"(?:masks?|segs?|segmentations?|labels?|label(?:train)?ids|instanceids|color|gt|annotations?|l)$",
    re.IGNORECASE,
)
_ENDS_OF_MASKS = tuple(
    f"{between}{word}" for word in ("mask", "masks", "seg", "segmentation", "label", "labels", "gt") for between in "_-."
)
_ENDS_OF_IMAGES = ("", "_leftImg8bit", "_image", "_img", "_sat", "_rgb")


class Found(NamedTuple):
    """What looks like masks of the images in a folder, and what to say of it.

    `option` takes them as they are, "" if they must be changed first. Annotations that name an image without its ending may
    mean a mask if `have_same_stem`, those that name it with its ending if `have_same_name`.
    """

    folder: str
    sentence: str
    images: str
    option: str
    have_same_stem: bool
    have_same_name: bool


class _Pixels(NamedTuple):
    """How many PNGs have one number for each pixel, or colours; and how many of the first have a palette, or at most 16 values,
    as few pictures have."""

    plain: int
    colours: int
    few_values: int

    @property
    def are_plain(self) -> bool:
        """Most have one number: some tools write a picture in colours beside each mask."""
        return self.plain > 0 and self.plain >= self.colours

    @property
    def have_few_values(self) -> bool:
        """Most have a palette or at most 16 values."""
        return self.are_plain and 2 * self.few_values > self.plain

    @property
    def are_colours(self) -> bool:
        """Most have colours."""
        return self.colours > self.plain


class _Kind(NamedTuple):
    """What the header of a PNG says of a pixel."""

    bits: int
    colour_type: int


_GREY, _PALETTE = 0, 3
"""Colour types of PNG with one number for each pixel."""

_BITS_OF_PICTURES = 8
"""Grey pictures have these bits or more for each pixel."""


class _Begins:
    """The beginnings of images, each read once: it may be a request to a store."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind | None] = {}

    def pixels(self, files: Sequence[str]) -> _Pixels:
        """Return what the PNGs among some images have."""
        kinds = [kind for file in files if (kind := self._kind(file)) is not None]
        plain = [kind for kind in kinds if kind.colour_type in (_GREY, _PALETTE)]
        few_values = sum(kind.colour_type == _PALETTE or kind.bits < _BITS_OF_PICTURES for kind in plain)
        return _Pixels(len(plain), sum(kind.colour_type in (2, 4, 6) for kind in kinds), few_values)

    def are_plain(self, images: Sequence[Listed]) -> bool:
        """Return whether a few images have one number for each pixel, so that they may be masks themselves."""
        return all(self.pixels([images[place].opened]).plain for place in evenly_spaced(len(images), EACH))

    def _kind(self, file: str) -> _Kind | None:
        if file not in self._kinds:
            self._kinds[file] = _kind_of(file)
        return self._kinds[file]


def look_for_masks(images: Images) -> Iterator[Found]:
    """Yield what looks like masks: a folder beside that of their images, or files beside their images."""
    if len(images.folders) > MOST_FOLDERS:  # these are classes
        return
    begins = _Begins()
    for folder, some in zip(images.folders, images.some, strict=True):
        found = _as_folder(images, begins, folder, some) or _as_neighbours(images, begins, folder, some)
        if found is not None:
            yield found


def _as_folder(images: Images, begins: _Begins, folder: str, some: Sequence[Listed]) -> Found | None:
    """Tell a folder of masks: its name or that of another says so, and images of the other have the same names.

    Where only the name of the other says so, the folder may have any pictures, such as of depth or heat: its pixels decide.
    """
    few = [one for one in (some[place] for place in evenly_spaced(len(some), EACH)) if one.name.lower().endswith(".png")]
    for beside in sorted(images.folders, key=lambda each: not _OF_IMAGES & _words_apart(each, folder)) if few else ():
        ours, theirs = _words_apart(folder, beside), _words_apart(beside, folder)
        is_likely, is_sure, has_images = _has(_LIKELY, ours), _has(_SURE, ours), bool(_OF_IMAGES & theirs)
        if _has(_LIKELY, theirs) or not (is_likely or (has_images and not _OF_IMAGES & ours)):
            continue
        if _has(_OF_PICTURES, ours) and not is_sure:
            continue
        pairs = [(one, name) for one in few if (name := _name_of_image(images, one, beside))]
        if len(pairs) < _most(len(few)):
            continue
        pixels = begins.pixels([one.opened for one, _ in pairs])
        if pixels.are_plain and (is_likely or pixels.have_few_values):
            are_masks = is_sure or not begins.are_plain(images.some[images.folders.index(beside)])
        else:
            are_masks = pixels.are_colours and is_sure and has_images
        mask, image = _where_they_part(folder, beside)
        if are_masks and mask:
            one, name = next(((one, name) for one, name in pairs if stem(one.name) != name), pairs[0])
            root = one.opened[: -len(joined(folder, one.name))]
            changes = [] if stem(one.name) == name else [f"name each as its image ({name}.png, not {one.name})"]
            said = f"{printable(root + mask)} looks like masks of the images in {printable(root + image)}"
            sentence = _sentence(said, changes, pixels, root + mask)
            option = "" if changes or pixels.are_colours else _option(root + mask)
            have_same_stem = any(stem(one.name) == name for one, name in pairs)
            have_same_name = any(images.are_there([joined(beside, one.name) for one, _ in pairs]))
            return Found(root + mask, sentence, root + image, option, have_same_stem, have_same_name)
    return None


def _as_neighbours(images: Images, begins: _Begins, folder: str, some: Sequence[Listed]) -> Found | None:
    """Tell masks that lie beside their images, as 0_mask.png beside 0.jpg."""
    of_images = [one for one in some if not _END_OF_MASK.search(stem(one.name))]
    starts = {one: [stem(one.name).removesuffix(end) for end in _ENDS_OF_IMAGES] for one in of_images}
    for end in _ENDS_OF_MASKS:
        names = [f"{start}{end}.png" for starts_of in starts.values() for start in starts_of]
        there = images.are_there([joined(folder, name) for name in names])
        found = {place // len(_ENDS_OF_IMAGES): names[place] for place, is_there in enumerate(there) if is_there}
        if not found or 2 * len(found) < len(of_images):
            continue
        few = [list(found)[place] for place in evenly_spaced(len(found), EACH)]
        pixels = begins.pixels([join(parent_of(of_images[place].opened), found[place]) for place in few])
        is_sure = _SURE.search(end) is not None
        if (pixels.are_colours and is_sure) or (pixels.are_plain and (is_sure or not begins.are_plain(of_images))):
            at, name = parent_of(of_images[few[0]].opened), found[few[0]]
            image = f"{stem(of_images[few[0]].name)}.png"
            changes = [f"move them to a folder of their own, each with the name of its image ({image}, not {name})"]
            sentence = _sentence(f"{printable(at)} has what looks like masks beside their images", changes, pixels, "DIR")
            return Found(at, sentence, at, "", have_same_stem=False, have_same_name=False)
    return None


def _sentence(said: str, changes: list[str], pixels: _Pixels, folder: str) -> str:
    if pixels.are_colours:
        changes = [*changes, "save them with one number for each pixel in place of colours"]
    before = f"{printable('; '.join(changes))}; then " if changes else ""
    return f"{said}, and each of them becomes a sample of its own; to keep them with their images: {before}{_option(folder)}"


def _option(folder: str) -> str:
    return f"--labels {shlex.quote('masks:' + printable(folder))}"


def _name_of_image(images: Images, mask: Listed, folder: str) -> str | None:
    """Return what the image of a mask is called in a folder, without its ending; None if there is none."""
    name = stem(mask.name)
    cut = _END_OF_MASK.sub("", name)
    names = [name, *(f"{cut}{end}" for end in _ENDS_OF_IMAGES if cut != name)]
    there = images.are_images([joined(folder, each) for each in names])
    return next((name for name, is_there in zip(names, there, strict=True) if is_there), None)


def _has(of: re.Pattern[str], words: set[str]) -> bool:
    return any(map(of.search, words))


def _most(count: int) -> int:
    """Return how many of them are enough: one of four may be something else."""
    return max(1, -(-3 * count // 4))


def _words_apart(folder: str, other: str) -> set[str]:
    """Return the words of those parts of a folder that another does not have, in lower case."""
    parts = set(folder.split("/")) - set(other.split("/"))
    return {word.lower() for part in parts for word in _WORDS.findall(part)}


def _where_they_part(folder: str, other: str) -> tuple[str, str]:
    """Return two folders down to the first part in which they differ: masks/train and images/train give masks and images."""
    one, two = folder.split("/"), other.split("/")
    place = next((at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    return "/".join(one[: place + 1]), "/".join(two[: place + 1])


def _kind_of(file: str) -> _Kind | None:
    """Return what the header of a PNG says of a pixel. None for what is no PNG."""
    try:
        begin = begin_of(file, 26)
    except (OSError, Rejection):
        return None
    return _Kind(begin[24], begin[25]) if len(begin) == 26 and begin.startswith(b"\x89PNG\r\n") else None
