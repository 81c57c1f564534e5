"""What stands for a call of `write` by parts: the same call goes on with the parts that are done."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from shardctl.format.shard import FORMAT_VERSION
from shardctl.system.dataclass import dataclass
from shardctl.transforms.own_code import code_digest
from shardctl.version import __version__


@dataclass(frozen=True)
class Stretches:
    """Makes the samples of datasets by index, from one index to another."""

    datasets: Sequence[Any]

    def __call__(self, part: tuple[int, int, int]) -> Iterator[Any]:
        """Yield the samples of a stretch: the number of the dataset, the first index and the one behind the last."""
        place, first, end = part
        return (self.datasets[place][index] for index in range(first, end))


def identity_of(make: Callable[[Any], Iterable[Any]], parts: Sequence[Any], options: Any) -> str | None:
    """Return what stands for a call: its arguments, the code that makes the samples, and the versions that write them.

    None where nothing can tell: objects that cannot be pickled, code without a file.
    """
    codes = [type(dataset) for dataset in make.datasets] if isinstance(make, Stretches) else [make]
    digest = _Digest()
    try:
        for code in codes:
            found = code_digest(f"{getattr(code, '__module__', '')}:{getattr(code, '__qualname__', '')}", code)
            if found is None:
                return None
            digest.write(found.encode())
        digest.write(f"{__version__} {FORMAT_VERSION} {pa.__version__}".encode())
        pickle.Pickler(digest, protocol=5).dump((make, list(parts), options))
    except Exception:  # noqa: BLE001 - a person's objects may raise anything when they are pickled
        return None
    return digest.text


class _Digest:
    """Hashes what is written to it: a pickled dataset may be as large as the memory."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        """Hash some bytes."""
        self._digest.update(data)
        return memoryview(data).nbytes

    @property
    def text(self) -> str:
        """The digest, 16 hex digits."""
        return self._digest.hexdigest()[:16]
