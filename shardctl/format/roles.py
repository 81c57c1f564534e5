"""The sample, and the roles of its fields: what a field is for, and what its Arrow type does not say.
docs/format.md, section 2, `fields`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, TypeVar

Sample = dict[str, Any]
"""One training example: field name to value. Always has `key`; see docs/format.md for the other
names."""

RESERVED_FIELDS = ("key", "image", "variant")
"""Names that shardctl gives to fields itself, so that a labels file or a JSONL line may not use
them."""


PLAIN_ROLES = ("boxes", "keypoints", "text", "number")
"""Roles of which there is nothing more to say."""

PLACES = ("boxes", "keypoints")
"""Those of places in the image, which only objects have moved with it."""


@dataclass(frozen=True)
class Image:
    """A picture. `store` says how it is kept (`source`, `jpeg:90`, `raw`, …).

    `shape` is the decoded (height, width, 3) where all images of the field share one, else None.
    """

    store: str
    shape: tuple[int, ...] | None = None
    name: ClassVar[str] = "image"
    always: ClassVar[tuple[str, ...]] = ("store", "shape")
    axes: ClassVar[tuple[str, ...]] = ("height", "width", "3")

    @property
    def is_plain(self) -> bool:
        """Whether shardctl has written all of them as JPEG: plain ones as docs/format.md defines
        them."""
        return self.store.partition(":")[0] == "jpeg"


@dataclass(frozen=True)
class Mask(Image):
    """A number for every pixel of a picture, such as its class. `shape` is (height, width).

    Its numbers are never mixed with those of their neighbours: it is resized by taking the nearest
    pixel. `names[n]` is the name of the class n where the numbers are classes, None if they have no
    names; `ignore` is the number of pixels that are of no class, None if there is none. Encoded
    masks have numbers of `bits`, 8 or 16.
    """

    names: tuple[str, ...] | None = None
    ignore: int | None = None
    bits: int = 8
    name: ClassVar[str] = "mask"
    axes: ClassVar[tuple[str, ...]] = ("height", "width")


@dataclass(frozen=True)
class Label:
    """The class of a sample: `names[n]` is the name of class n. None if the values have no
    names."""

    names: tuple[str, ...] | None = None
    name: ClassVar[str] = "label"
    always: ClassVar[tuple[str, ...]] = ("names",)


@dataclass(frozen=True)
class Objects:
    """What is marked in the main image: a struct of lists with an item for each object
    (docs/annotations.md).

    `names[n]` is the name of the category n, None if they have no names; `ids[n]` is its number in
    the source and `supercategories[n]` what it belongs to, None where the source does not say.
    `keypoints` names the points of an object in their order, `skeleton` has the pairs of points
    (counted from 0) that a line connects, and `flip[n]` is the point that point n becomes in a
    mirrored image; None if they are not known, or there are no keypoints.
    """

    names: tuple[str, ...] | None = None
    ids: tuple[int, ...] | None = None
    supercategories: tuple[str, ...] | None = None
    keypoints: tuple[str, ...] | None = None
    skeleton: tuple[tuple[int, int], ...] | None = None
    flip: tuple[int, ...] | None = None
    name: ClassVar[str] = "objects"
    always: ClassVar[tuple[str, ...]] = ("names",)


@dataclass(frozen=True)
class Tokens:
    """The numbers of tokens of texts: a list of them for each sample, or a block of fixed length.

    They are below `vocabulary`. `eos` ends a document, and `pad` fills a block up. `tokenizer`
    names the one that made them (docs/text.md). None where it is not known, or there is no such
    token. Where blocks have several documents (`packed`), the columns document_keys,
    document_lengths and document_starts have an item for each.
    """

    vocabulary: int | None = None
    eos: int | None = None
    pad: int | None = None
    tokenizer: str | None = None
    packed: bool = False
    name: ClassVar[str] = "tokens"
    always: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Plain:
    """A role without facts: one of PLAIN_ROLES."""

    name: str


Role = Image | Label | Objects | Tokens | Plain
"""What a field is for. A Mask is an Image too."""


Kind = TypeVar("Kind", Image, Label, Objects, Tokens)


@dataclass(frozen=True)
class Roles:
    """The role of each field that has one, by the name of the field."""

    by_name: Mapping[str, Role] = field(default_factory=dict)

    def get(self, name: str) -> Role | None:
        """Return the role of a field, None if it has none."""
        return self.by_name.get(name)

    @cached_property
    def images(self) -> dict[str, Image]:
        """The fields of images and masks, in their order."""
        return self._of(Image)

    @cached_property
    def labels(self) -> dict[str, Label]:
        """The fields of labels, in their order."""
        return self._of(Label)

    @cached_property
    def objects(self) -> dict[str, Objects]:
        """The fields of objects, in their order."""
        return self._of(Objects)

    @cached_property
    def tokens(self) -> dict[str, Tokens]:
        """The fields of tokens, in their order."""
        return self._of(Tokens)

    def _of(self, kind: type[Kind]) -> dict[str, Kind]:
        return {name: role for name, role in self.by_name.items() if isinstance(role, kind)}

    @cached_property
    def names(self) -> dict[str, tuple[str, ...]]:
        """The names of the classes of each label whose classes have names."""
        return {name: role.names for name, role in self.labels.items() if role.names is not None}

    @cached_property
    def main_image(self) -> str | None:
        """The field that is meant by "the image": `image`, else the only image that is no mask,
        else the only one at all."""
        pictures = [name for name, role in self.images.items() if not isinstance(role, Mask)]
        return _main("image", self.images, pictures or list(self.images))

    @cached_property
    def main_label(self) -> str | None:
        """The field that is meant by "the label": `label`, else the only label, else None."""
        return _main("label", self.labels, list(self.labels))

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes of the main label; None if there is none, or its values have no
        names."""
        return None if self.main_label is None else self.labels[self.main_label].names

    def to_json(self) -> dict[str, Any]:
        """Return the roles as plain data: `fields` in docs/format.md."""
        return {name: {"role": role.name, **_facts(role)} for name, role in self.by_name.items()}

    @classmethod
    def from_json(cls, fields: Any) -> Roles:
        """Read what `to_json` returned, from an untrusted file. Raises ValueError or TypeError for
        anything else."""
        if not isinstance(fields, dict):
            raise TypeError("fields are an object")
        return cls({name: _role(said) for name, said in fields.items()})


def _main(usual: str, of_the_role: Mapping[str, Any], candidates: list[str]) -> str | None:
    if usual in of_the_role:
        return usual
    return candidates[0] if len(candidates) == 1 else None


def _facts(role: Role) -> dict[str, Any]:
    """Return what is known beyond the role, as plain data: what is `always` said, and what differs
    from its default."""
    if isinstance(role, Plain):
        return {}
    known = {each.name: (getattr(role, each.name), each.default) for each in fields(role)}
    return {
        name: _listed(value)
        for name, (value, default) in known.items()
        if name in role.always or value != default
    }


_KINDS: dict[str, type[Image | Label | Objects | Tokens]] = {
    kind.name: kind for kind in (Image, Mask, Label, Objects, Tokens)
}


def _role(said: Any) -> Role:
    """Build one role. Raises ValueError or TypeError."""
    if not isinstance(said, dict) or type(said.get("role")) is not str:
        raise TypeError("a field has a role")
    name, facts = said["role"], {key: value for key, value in said.items() if key != "role"}
    kind = _KINDS.get(name)
    if name in PLAIN_ROLES and not facts:
        return Plain(name)
    if kind is None or not {*kind.always} <= set(facts) <= {each.name for each in fields(kind)}:
        raise ValueError(f"no such role, or not with these facts: {said!r:.200}")
    if issubclass(kind, Image):
        return _image(kind, facts)
    if kind is Label:
        return Label(_strings(facts["names"]))
    return _objects(facts) if kind is Objects else _tokens(facts)


def _image(kind: type[Image], facts: dict[str, Any]) -> Image:
    store, shape = _store(facts["store"]), _shape(facts["shape"], kind)
    if not issubclass(kind, Mask):
        return Image(store, shape)
    ignore, bits = facts.get("ignore"), facts.get("bits", 8)
    if (ignore is not None and type(ignore) is not int) or bits not in (8, 16):
        raise ValueError("ignore is a whole number, and bits are 8 or 16")
    return Mask(store, shape, _strings(facts.get("names")), ignore, bits)


def _tokens(facts: dict[str, Any]) -> Tokens:
    made = Tokens(**facts)
    if any(
        number is not None and (type(number) is not int or not 0 <= number <= 2**32)
        for number in (made.vocabulary, made.eos, made.pad)
    ):
        raise ValueError("vocabulary, eos and pad are whole numbers")
    if type(made.packed) is not bool or type(made.tokenizer) not in (str, type(None)):
        raise TypeError("packed is true or false, and tokenizer a string")
    return made


def _objects(facts: dict[str, Any]) -> Objects:
    names, keypoints, supercategories = (
        _strings(facts.get(name)) for name in ("names", "keypoints", "supercategories")
    )
    ids, flip = (_numbers(facts.get(name)) for name in ("ids", "flip"))
    lines = facts.get("skeleton")
    skeleton = None if lines is None else tuple(_numbers(line) or () for line in lines)
    points = 0 if keypoints is None else len(keypoints)
    for each in (ids, supercategories):
        if each is not None and len(each) != len(names or ()):
            raise ValueError("there is one id, and one supercategory, for each name")
    if flip is not None and (len(flip) != points or set(flip) != set(range(points))):
        raise ValueError("flip has each keypoint once")
    if any(
        len(line) != 2 or not all(0 <= point < points for point in line) for line in skeleton or ()
    ):
        raise ValueError("a line of the skeleton connects two keypoints")
    return Objects(names, ids, supercategories, keypoints, skeleton, flip)  # type: ignore[arg-type]  # its pairs were checked


def _store(store: Any) -> str:
    if type(store) is not str:
        raise TypeError("store is a string")
    return store


def _shape(shape: Any, kind: type[Image]) -> tuple[int, ...] | None:
    if shape is None:
        return None
    fits = isinstance(shape, list) and len(shape) == len(kind.axes)
    if not fits or not all(type(length) is int and 0 < length < 2**31 for length in shape):
        raise ValueError(f"a shape of {kind.name} is ({', '.join(kind.axes)})")
    if kind is Image and shape[2] != 3:
        raise ValueError("an image has 3 channels")
    return tuple(shape)


def _strings(names: Any) -> tuple[str, ...] | None:
    if names is None:
        return None
    if not isinstance(names, list) or not all(type(name) is str for name in names):
        raise TypeError("names are a list of strings")
    return tuple(names)


def _numbers(numbers: Any) -> tuple[int, ...] | None:
    if numbers is None:
        return None
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        raise TypeError("a list of whole numbers was expected")
    return tuple(numbers)


def _listed(value: Any) -> Any:
    """Return a tuple as JSON has it, the tuples in it too."""
    return [_listed(each) for each in value] if isinstance(value, tuple) else value
