"""shardctl: preprocess a dataset once, prove it whole, and measure whether it keeps the GPU busy.

import shardctl shardctl.convert("photos", "out", resize=256, crop=224, store="raw", split={"train":
0.9, "val": 0.1}) ds = shardctl.open("out", split="train") for batch in ds.loader(batch_size=256,
shuffle=True, seed=0):
    ...
"""

from __future__ import annotations

import sys
from typing import Any

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
    "compact": ("shardctl.making.rewrite.compact", "compact"),
    "convert": ("shardctl.making.convert", "convert"),
    "export": ("shardctl.interop.exports.exporting", "export"),
    "finish": ("shardctl.making.convert.parts", "finish"),
    "inspect": ("shardctl.inspection.content.inspection", "inspect"),
    "mix": ("shardctl.loader.mix", "mix"),
    "open": ("shardctl.loader.dataset", "open_dataset"),
    "prune": ("shardctl.making.rewrite.prune", "prune"),
    "repair": ("shardctl.making.repair", "repair"),
    "snapshot": ("shardctl.making.snapshot", "snapshot"),
    "train_tokenizer": ("shardctl.making.train_tokenizer", "train_tokenizer"),
    "transform": ("shardctl.transforms.custom", "transform"),
    "verify": ("shardctl.inspection.verify.verification", "verify"),
    "watch": ("shardctl.loader.watching", "watch"),
    "write": ("shardctl.making.write", "write"),
}
"""Where each public function is. Editors and type checkers read `__init__.pyi`, which is written
from this."""

_ADAPTERS = ("torch", "tensorflow", "jax")
"""Modules for other libraries. Each is imported when it is first used, and says which package it
needs."""


def __dir__() -> list[str]:
    """Return all public names, including the functions that are imported at first use."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import a public function at its first use, so that `shardctl --help` does not wait for
    Arrow."""
    import importlib

    if name in _ADAPTERS:
        return importlib.import_module(f"shardctl.{name}")
    if name not in _PUBLIC:
        from shardctl.system.text import did_you_mean

        meant = did_you_mean(name, __all__) if name[0] != "_" else ""
        raise AttributeError(
            f"module 'shardctl' has no attribute {name!r}{meant}",
            name=name,
            obj=sys.modules[__name__],
        )
    module, attribute = _PUBLIC[name]
    from shardctl.system.python_names import for_python

    return globals().setdefault(
        name, for_python(getattr(importlib.import_module(module), attribute), name)
    )
