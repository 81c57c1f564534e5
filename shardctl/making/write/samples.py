"""Samples as they come from Python and from the datasets of PyTorch, TensorFlow and Hugging Face,
made into dicts of values."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shardctl.errors import InputError, ShardctlError, UsageError
from shardctl.format.roles import Sample
from shardctl.images.codecs.image import to_rgb
from shardctl.system.text import printable
from shardctl.transforms.values import DEEPEST, PLAIN, describe

AS_THEY_ARE = (str, int, float, bytes, bool, type(None), list, dict, np.ndarray)
"""Types of values that need no look."""

Names = tuple[str, ...] | None

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
    several = list(samples.values()) if isinstance(samples, Mapping) else [samples]
    features = getattr(several[0], "features", None) if several else None
    if isinstance(features, Mapping):
        found = getattr(features.get("label"), "names", None)
    else:
        found = (
            getattr(several[0], "classes", None) if several and "label" in (names or ()) else None
        )
    are_names = (
        isinstance(found, list | tuple)
        and bool(found)
        and all(isinstance(name, str) for name in found)
    )
    return tuple(found) if are_names and found is not None else None


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
            raise _raised(error, number, where) from error
        yield own(_sample(element, names, number, where))
        number += 1


def _raised(error: Exception, number: int, where: str) -> InputError:
    return InputError(
        f"{where}sample {number:,}: making it raised {type(error).__name__}: "
        f"{printable(str(error))}"
    )


def _sample(element: Any, names: Names, number: int, where: str) -> Any:
    if isinstance(element, dict) and names is not None:
        raise InputError(
            f"{where}sample {number:,} is a dict, so its values have names; leave out fields="
        )
    if isinstance(element, tuple | list) and names is not None:
        if len(element) != len(names):
            raise InputError(
                f"{where}sample {number:,} has {len(element)} values, and fields= names "
                f"{len(names)}"
            )
        element = dict(zip(names, element, strict=True))
    if isinstance(element, tuple):
        raise InputError(
            f"{where}sample {number:,} is a tuple of {len(element)} values; name them, as in "
            "fields=('image', 'label')"
        )
    if isinstance(element, dict) and not all(
        type(value) in AS_THEY_ARE for value in element.values()
    ):
        return {name: _value(value) for name, value in element.items()}
    if isinstance(element, dict) and _is_stored_image(element.get("image")):
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
        made = (own(part, deepest - 1) for part in value)
        return (
            value[:]
            if set(map(type, value)) <= PLAIN
            else tuple(made)
            if isinstance(value, tuple)
            else list(made)
        )
    if deepest and isinstance(value, dict):
        return {name: own(part, deepest - 1) for name, part in value.items()}
    return value


def part_of(make: Callable[[Any], Iterable[Any]], part: Any) -> Iterable[Any]:
    """Yield what a function makes of one part. It is called when the first sample is wanted."""
    made = make(part)
    if made is None:
        raise ValueError(
            "the function of the parts returned None; it yields samples, or returns an iterable"
        )
    yield from elements_of(made)
