"""Batches of samples as training makes them: images as pixels, values of one shape as one array."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import end_with_parent

Values = dict[str, Any]
"""Values by their names: the fields of a sample, or the options of a reader."""


@dataclass(frozen=True)
class Reading:
    """An open reader. `library` is its name and version. `epoch` returns the batches of an epoch.

    `how` says in what it reads, and `parallel` in how many processes or threads, 0 if it finds the
    number itself. `ahead` says whether it makes batches while others are taken.
    """

    library: str
    how: str
    parallel: int
    ahead: bool
    epoch: Callable[[], Iterable[Batch]]


@dataclass(frozen=True)
class Batch:
    """A batch: how many samples it has, and their values by field."""

    samples: int
    values: Values

    def bytes(self) -> int:
        """Return the bytes of the values."""
        return _bytes_of(self.values)


def _bytes_of(value: Any) -> int:
    if isinstance(value, list | tuple):
        return sum(map(_bytes_of, value))
    if isinstance(value, dict):
        return sum(map(_bytes_of, value.values()))
    return int(
        getattr(value, "nbytes", None) or (len(value) if isinstance(value, str | bytes) else 8)
    )


_IMAGES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8")


def is_image(value: Any) -> bool:
    """Return whether a value begins as an encoded image does."""
    if not isinstance(value, bytes):
        return False
    if value.startswith((b"RIFF", b"BM")):  # sounds and texts begin so too
        return value[8:12] == b"WEBP" or value[6:10] == bytes(4)
    return value.startswith(_IMAGES)


def decoded(value: Any) -> Any:
    """Return the pixels of an image, encoded or of Pillow, as an array of shape (height, width, 3),
    uint8; else the value."""
    if is_image(value):
        from PIL import Image

        try:
            return np.asarray(Image.open(io.BytesIO(value)).convert("RGB"))
        except (OSError, SyntaxError, ValueError):  # a damaged one: training would skip it
            return value
    return np.asarray(value.convert("RGB")) if hasattr(value, "getbands") else value


@dataclass(frozen=True)
class Collate:
    """Makes a batch of samples. Arrays of one shape become one; for `processes`, all become
    tensors, which are not copied."""

    decode: bool
    processes: int

    def __call__(self, samples: Sequence[Values]) -> Batch:
        """Return a batch."""
        names = dict.fromkeys(name for sample in samples for name in sample)
        return Batch(
            len(samples),
            {
                name: self._together([self._value(sample.get(name)) for sample in samples])
                for name in names
            },
        )

    def _value(self, value: Any) -> Any:
        return decoded(value) if self.decode else value

    def _together(self, values: list[Any]) -> Any:
        if all(isinstance(value, int | float | np.number) for value in values):
            return self._tensor(np.asarray(values))
        if not all(isinstance(value, np.ndarray) for value in values):
            return values
        if len({(value.shape, value.dtype) for value in values}) == 1:
            return self._tensor(np.stack(values))
        if not self.processes:
            return values
        # One tensor in shared memory, as each would take a file descriptor.
        return [
            self._tensor(np.concatenate([value.ravel() for value in values])),
            [value.shape for value in values],
        ]

    def _tensor(self, values: Any) -> Any:
        if not self.processes or values.dtype.kind not in "biuf":
            return values
        import torch

        return torch.from_numpy(values)


def has_torch() -> bool:
    """Return whether PyTorch is installed, whose DataLoader reads in processes."""
    try:
        import torch  # noqa: F401 - only whether it is there
    except ImportError:
        return False
    return True


def reading_of(library: str, processes: int, epoch: Callable[[], Iterable[Batch]]) -> Reading:
    """Return a reader in so many worker processes, or in this one."""
    if processes:
        how = f"{processes} worker process{'es' if processes > 1 else ''} of PyTorch's DataLoader"
    else:
        how = "one process, as PyTorch is not installed"
    return Reading(library, how, max(1, processes), processes > 0, epoch)


def reading_by_workers(library: str, dataset: Any, processes: int, **options: Any) -> Reading:
    """Return a reader by PyTorch's DataLoader, whose worker processes stay for later epochs."""
    from torch.utils.data import DataLoader

    loader = DataLoader(
        dataset,
        num_workers=processes,
        persistent_workers=True,
        multiprocessing_context="fork",
        worker_init_fn=lambda worker: end_with_parent(),
        **options,
    )
    return reading_of(library, processes, lambda: loader)
