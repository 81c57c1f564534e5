"""The sample, and the roles of its fields: what a field is for, and what its Arrow type does not say.
docs/format.md, section 2, `fields`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from shardctl.format.names import Json

Sample = Json
"""One training example: field name to value. Always has `key`; see docs/format.md for the other
names."""

Names = tuple[str, ...]
"""Names of classes, of points or of columns, in their order."""

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
    always: ClassVar[Names] = ("store", "shape")
    axes: ClassVar[Names] = ("height", "width", "3")

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

    names: Names | None = None
    ignore: int | None = None
    bits: int = 8
    name: ClassVar[str] = "mask"
    axes: ClassVar[Names] = ("height", "width")


@dataclass(frozen=True)
class Label:
    """The class of a sample: `names[n]` is the name of class n. None if the values have no
    names."""

    names: Names | None = None
    name: ClassVar[str] = "label"
    always: ClassVar[Names] = ("names",)


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

    names: Names | None = None
    ids: tuple[int, ...] | None = None
    supercategories: Names | None = None
    keypoints: Names | None = None
    skeleton: tuple[tuple[int, int], ...] | None = None
    flip: tuple[int, ...] | None = None
    name: ClassVar[str] = "objects"
    always: ClassVar[Names] = ("names",)


@dataclass(frozen=True)
class Tokens:
    """The numbers of tokens of texts: a list of them for each sample, or a block of fixed length.

    They are below `vocabulary`. `eos` ends a document, and `pad` fills a block up. `tokenizer`
    names the one that made them (docs/text/tokens.md). None where it is not known, or there is no such
    token. Where blocks have several documents (`packed`), the columns document_keys,
    document_lengths and document_starts have an item for each.
    """

    vocabulary: int | None = None
    eos: int | None = None
    pad: int | None = None
    tokenizer: str | None = None
    packed: bool = False
    name: ClassVar[str] = "tokens"
    always: ClassVar[Names] = ()


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
    def names(self) -> dict[str, Names]:
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
    def classes(self) -> Names | None:
        """The names of the classes of the main label; None if there is none, or its values have no
        names."""
        return None if self.main_label is None else self.labels[self.main_label].names

    def to_json(self) -> Json:
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


def _facts(role: Role) -> Json:
    """Return what is known beyond the role, as plain data: what is `always` said, and what differs
    from its default."""
    if isinstance(role, Plain):
        return {}
    return {
        each.name: _listed(value)
        for each in fields(role)
        if (value := getattr(role, each.name)) != each.default or each.name in role.always
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
    role = kind(**{fact: _READERS[fact](value) for fact, value in facts.items()})
    if not _fits(role):
        raise ValueError(f"facts that do not go together: {said!r:.200}")
    return role


def _fits(role: Image | Label | Objects | Tokens) -> bool:
    """Return whether the facts of a role go together."""
    if isinstance(role, Image):
        shape, axes = role.shape, role.axes
        return (not isinstance(role, Mask) or role.bits in (8, 16)) and (
            shape is None
            or (
                len(shape) == len(axes)
                and all(0 < side < 2**31 for side in shape)
                and shape[-1] in (3, *(() if axes[-1] == "3" else shape))
            )
        )
    if isinstance(role, Tokens):
        return all(0 <= (each or 0) <= 2**32 for each in (role.vocabulary, role.eos, role.pad))
    if isinstance(role, Objects):
        of_names = [len(each) for each in (role.ids, role.supercategories) if each is not None]
        points = range(len(role.keypoints or ()))
        lines = role.skeleton or ()
        return (
            all(count == len(role.names or ()) for count in of_names)
            and (role.flip is None or sorted(role.flip) == list(points))
            and all(len(line) == 2 and set(line) <= set(points) for line in lines)
        )
    return True


def _one_of(*kinds: type) -> Callable[[Any], Any]:
    """Return a reader of one value of these types. It raises TypeError for any other."""

    def read(value: Any) -> Any:
        if type(value) not in kinds:
            raise TypeError(f"{value!r:.200} is not {' or '.join(kind.__name__ for kind in kinds)}")
        return value

    return read


def _list_of(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a reader of a list, or of null."""
    is_list = _one_of(list, type(None))
    return lambda value: None if is_list(value) is None else tuple(map(read, value))


_TEXT, _NUMBER, _PERHAPS = _one_of(str), _one_of(int), _one_of(int, type(None))
_READERS: dict[str, Callable[[Any], Any]] = {
    "store": _TEXT,
    "tokenizer": _one_of(str, type(None)),
    "packed": _one_of(bool),
    "bits": _NUMBER,
    **dict.fromkeys(("ignore", "vocabulary", "eos", "pad"), _PERHAPS),
    **dict.fromkeys(("names", "supercategories", "keypoints"), _list_of(_TEXT)),
    **dict.fromkeys(("shape", "ids", "flip"), _list_of(_NUMBER)),
    "skeleton": _list_of(_list_of(_NUMBER)),
}
"""What reads each fact from an untrusted file."""


def _listed(value: Any) -> Any:
    """Return a tuple as JSON has it, the tuples in it too."""
    return [_listed(each) for each in value] if isinstance(value, tuple) else value
