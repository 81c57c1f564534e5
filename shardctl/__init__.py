"""shardctl: preprocess a dataset once, prove it whole, and measure whether it keeps the GPU busy.

import shardctl
shardctl.convert("photos", "out", resize=256, crop=224, store="raw", split={"train": 0.9, "val": 0.1})
ds = shardctl.open("out", split="train")
for batch in ds.loader(batch_size=256, shuffle=True, seed=0):
    ...
"""

from __future__ import annotations

import sys
from typing import Any

from shardctl.system.moved_modules import find_moved_modules
from shardctl.version import __version__

__all__ = [
    "__version__",
    "advise",
    "bench",
    "compact",
    "convert",
    "export",
    "finish",
    "inspect",
    "mix",
    "open",
    "prune",
    "repair",
    "snapshot",
    "train_tokenizer",
    "transform",
    "verify",
    "watch",
    "write",
]

_PUBLIC = {
    "advise": ("shardctl.benchmark.advice", "advise"),
    "bench": ("shardctl.benchmark.measure", "bench"),
    "compact": ("shardctl.build.rewrite.compact", "compact"),
    "convert": ("shardctl.build.convert", "convert"),
    "export": ("shardctl.interop.exports.exporting", "export"),
    "finish": ("shardctl.build.convert.finish", "finish"),
    "inspect": ("shardctl.inspection.content.inspection", "inspect"),
    "mix": ("shardctl.loader.mix", "mix"),
    "open": ("shardctl.loader.dataset", "open_dataset"),
    "prune": ("shardctl.build.rewrite.prune", "prune"),
    "repair": ("shardctl.build.repair", "repair"),
    "snapshot": ("shardctl.build.snapshot", "snapshot"),
    "train_tokenizer": ("shardctl.build.train_tokenizer", "train_tokenizer"),
    "transform": ("shardctl.transforms.declared", "transform"),
    "verify": ("shardctl.inspection.verify.verification", "verify"),
    "watch": ("shardctl.loader.metrics.watching", "watch"),
    "write": ("shardctl.build.write", "write"),
}
"""Where each public function is. Editors and type checkers read `__init__.pyi`, which is written from this."""

_ELSEWHERE = {
    "open": "load load_dataset load_from_disk Dataset StreamingDataset DataLoader dataset read",
    "convert": "build create make_dataset preprocess prepare",
    "write": "Writer ShardWriter MDSWriter DatasetWriter TarWriter",
    "bench": "benchmark measure",
    "prune": "remove delete",
    "mix": "concat concatenate interleave",
}
"""Public functions, and the names of other packages for what they do."""

_RENAMED = {"merge": "finish"}
"""Old names of public functions."""

find_moved_modules()
del find_moved_modules  # no name of the package's own


def __dir__() -> list[str]:
    """Return all public names, including the functions that are imported at first use."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import a public function at its first use, so that `shardctl --help` does not wait for Arrow."""
    import importlib

    if name in _RENAMED:
        import warnings

        warnings.warn(f"shardctl.{name} is now called shardctl.{_RENAMED[name]}", FutureWarning, stacklevel=2)
        name = _RENAMED[name]
    if name not in _PUBLIC:
        meant = next((f"; use shardctl.{public}" for public, words in _ELSEWHERE.items() if name in words.split()), "")
        raise AttributeError(f"module 'shardctl' has no attribute {name!r}{meant}", name=name, obj=sys.modules[__name__])
    module, attribute = _PUBLIC[name]
    from shardctl.system.python_names import for_python

    return globals().setdefault(name, for_python(getattr(importlib.import_module(module), attribute), name))
