"""shardctl: preprocess a dataset once, prove it whole, and measure whether it keeps the GPU busy.

import shardctl shardctl.convert("photos", "out", resize=256, crop=224, store="raw", split={"train":
0.9, "val": 0.1}) ds = shardctl.open("out", split="train") for batch in ds.loader(batch_size=256,
shuffle=True, seed=0):
    ...
"""

from __future__ import annotations

from shardctl.version import __version__

__all__ = [
    "Dataset",
    "Loader",
    "Mix",
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
    "Dataset": ("shardctl.loader.dataset", "Dataset"),
    "Loader": ("shardctl.loader.loader", "Loader"),
    "Mix": ("shardctl.loader.mix", "Mix"),
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
"""Where each public name is. Editors and type checkers read `__init__.pyi`, which is written
from this."""

_ADAPTERS = ("torch", "tensorflow", "jax")
"""Modules for other libraries. Each is imported when it is first used, and says which package it
needs."""


def __dir__() -> list[str]:
    """Return all public names, including those that are imported at first use."""
    return sorted({*(name for name in globals() if name[:2] == "__"), *__all__, *_ADAPTERS})


def __getattr__(name: str) -> object:
    """Import what is public at its first use, so that `shardctl --help` does not wait for Arrow."""
    import importlib

    from shardctl.system.python_names import for_python, not_in_module

    if name in _ADAPTERS:
        return importlib.import_module(f"shardctl.{name}")
    if name not in _PUBLIC:
        raise not_in_module("shardctl", name, __all__)
    module, attribute = _PUBLIC[name]
    return globals().setdefault(
        name, for_python(getattr(importlib.import_module(module), attribute), name)
    )
