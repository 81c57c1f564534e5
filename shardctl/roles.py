"""The roles of fields: what a field is for, and what its Arrow type does not say. docs/format.md, section 2, `fields`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

PLAIN_ROLES = ("boxes", "keypoints", "text", "tokens", "number")
"""Roles of which there is nothing more to say."""


@dataclass(frozen=True)
class Image:
    """A picture. `store` says how it is kept (`source`, `jpeg:90`, `raw`, …).

    `shape` is the decoded (height, width, 3) where all images of the field share one, else None.
    """

    store: str
    shape: tuple[int, ...] | None = None
    name: ClassVar[str] = "image"
    axes: ClassVar[tuple[str, ...]] = ("height", "width", "3")

    def facts(self) -> dict[str, Any]:
        """Return what is known beyond the role, as plain data."""
        return {"store": self.store, "shape": list(self.shape) if self.shape else None}


@dataclass(frozen=True)
class Mask(Image):
    """A number for every pixel of a picture, such as its class. `shape` is (height, width).

    Its numbers are never mixed with those of their neighbours: it is resized by taking the nearest pixel.
    """

    name: ClassVar[str] = "mask"
    axes: ClassVar[tuple[str, ...]] = ("height", "width")


@dataclass(frozen=True)
class Label:
    """The class of a sample: `names[n]` is the name of class n. None if the values have no names."""

    names: tuple[str, ...] | None = None
    name: ClassVar[str] = "label"

    def facts(self) -> dict[str, Any]:
        """Return what is known beyond the role, as plain data."""
        return {"names": None if self.names is None else list(self.names)}


@dataclass(frozen=True)
class Plain:
    """A role without facts: one of PLAIN_ROLES."""

    name: str

    def facts(self) -> dict[str, Any]:
        """Return nothing."""
        return {}


Role = Image | Label | Plain
"""What a field is for. A Mask is an Image too."""


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
        return {name: role for name, role in self.by_name.items() if isinstance(role, Image)}

    @cached_property
    def labels(self) -> dict[str, Label]:
        """The fields of labels, in their order."""
        return {name: role for name, role in self.by_name.items() if isinstance(role, Label)}

    @cached_property
    def names(self) -> dict[str, tuple[str, ...]]:
        """The names of the classes of each label whose classes have names."""
        return {name: role.names for name, role in self.labels.items() if role.names is not None}

    @cached_property
    def main_image(self) -> str | None:
        """The field that is meant by "the image": `image`, else the only image that is no mask, else the only one at all."""
        pictures = [name for name, role in self.images.items() if not isinstance(role, Mask)]
        return _main("image", self.images, pictures or list(self.images))

    @cached_property
    def main_label(self) -> str | None:
        """The field that is meant by "the label": `label`, else the only label, else None."""
        return _main("label", self.labels, list(self.labels))

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes of the main label; None if there is none, or its values have no names."""
        return None if self.main_label is None else self.labels[self.main_label].names

    def to_json(self) -> dict[str, Any]:
        """Return the roles as plain data: `fields` in docs/format.md."""
        return {name: {"role": role.name, **role.facts()} for name, role in self.by_name.items()}

    @classmethod
    def from_json(cls, fields: Any) -> Roles:
        """Read what `to_json` returned, from an untrusted file. Raises ValueError or TypeError for anything else."""
        if not isinstance(fields, dict):
            raise TypeError("fields are an object")
        return cls({name: _role(said) for name, said in fields.items()})


def _main(usual: str, of_the_role: Mapping[str, Any], candidates: list[str]) -> str | None:
    if usual in of_the_role:
        return usual
    return candidates[0] if len(candidates) == 1 else None


def _role(said: Any) -> Role:
    """Build one role. Raises ValueError or TypeError."""
    if not isinstance(said, dict) or type(said.get("role")) is not str:
        raise TypeError("a field has a role")
    name, facts = said["role"], {key: value for key, value in said.items() if key != "role"}
    for kind in (Image, Mask):
        if name == kind.name and set(facts) == {"store", "shape"}:
            if type(facts["store"]) is not str:
                raise TypeError("store is a string")
            return kind(facts["store"], _shape(facts["shape"], kind))
    if name == Label.name and set(facts) == {"names"}:
        return Label(_names(facts["names"]))
    if name in PLAIN_ROLES and not facts:
        return Plain(name)
    raise ValueError(f"no such role, or not with these facts: {said!r:.200}")


def _shape(shape: Any, kind: type[Image]) -> tuple[int, ...] | None:
    if shape is None:
        return None
    fits = isinstance(shape, list) and len(shape) == len(kind.axes)
    if not fits or not all(type(length) is int and 0 < length < 2**31 for length in shape):
        raise ValueError(f"a shape of {kind.name} is ({', '.join(kind.axes)})")
    if kind is Image and shape[2] != 3:
        raise ValueError("an image has 3 channels")
    return tuple(shape)


def _names(names: Any) -> tuple[str, ...] | None:
    if names is None:
        return None
    if not isinstance(names, list) or not all(type(name) is str for name in names):
        raise TypeError("classes have names, which are strings")
    return tuple(names)
