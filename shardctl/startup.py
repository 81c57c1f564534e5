"""What a process of our own does before anything else."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder


def keep_pandas_out_of_arrow() -> None:
    """Stop Arrow from importing pandas, where it is installed, at the first list that it makes an array of.

    Arrow only wants to know whether that list is a pandas object; in a worker it never is, and the import costs 0.4 s of
    every process (measured 2026-11-20, pandas 3.1). Arrow asks once: afterwards pandas can be imported as ever.
    """
    import pyarrow as pa

    refusal = _NoPandas()
    sys.meta_path.insert(0, refusal)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(refusal)


class _NoPandas(MetaPathFinder):
    """Refuses to find pandas."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "pandas":
            raise ImportError("left out while Arrow starts")
