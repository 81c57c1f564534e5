"""shardctl: preprocess a dataset once, prove it whole, and measure whether it keeps the GPU busy.

import shardctl
shardctl.convert("photos", "out", recipe={"store": "raw", "transform": [{"name": "resize", "size": "224x224"}]})
ds = shardctl.open("out", split="train")
for batch in ds.loader(batch_size=256, shuffle=True, seed=0):
    ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardctl.version import __version__

if TYPE_CHECKING:
    from shardctl.advice import advise as advise
    from shardctl.benchmark import bench as bench
    from shardctl.conversion import convert as convert
    from shardctl.conversion.merging import merge as merge
    from shardctl.exports.exporting import export as export
    from shardctl.inspection.verify import verify as verify
    from shardctl.loader.dataset import open_dataset as open
    from shardctl.loader.metrics.watching import watch as watch
    from shardctl.loader.mix import mix as mix
    from shardctl.restoration import repair as repair
    from shardctl.rewriting.compacting import compact as compact
    from shardctl.rewriting.pruning import prune as prune
    from shardctl.snapshots import snapshot as snapshot
    from shardctl.tokenizer_training import train_tokenizer as train_tokenizer
    from shardctl.transforms.declared import transform as transform
    from shardctl.writing import write as write

__all__ = [
    "__version__",
    "advise",
    "bench",
    "compact",
    "convert",
    "export",
    "merge",
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
    "advise": ("shardctl.advice", "advise"),
    "bench": ("shardctl.benchmark", "bench"),
    "convert": ("shardctl.conversion", "convert"),
    "export": ("shardctl.exports.exporting", "export"),
    "merge": ("shardctl.conversion.merging", "merge"),
    "mix": ("shardctl.loader.mix", "mix"),
    "open": ("shardctl.loader.dataset", "open_dataset"),
    "compact": ("shardctl.rewriting.compacting", "compact"),
    "prune": ("shardctl.rewriting.pruning", "prune"),
    "repair": ("shardctl.restoration", "repair"),
    "snapshot": ("shardctl.snapshots", "snapshot"),
    "train_tokenizer": ("shardctl.tokenizer_training", "train_tokenizer"),
    "transform": ("shardctl.transforms.declared", "transform"),
    "verify": ("shardctl.inspection.verify", "verify"),
    "watch": ("shardctl.loader.metrics.watching", "watch"),
    "write": ("shardctl.writing", "write"),
}


def __dir__() -> list[str]:
    """Return all public names, including the functions that are imported at first use."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import a public function at its first use, so that `shardctl --help` does not wait for Arrow."""
    import importlib

    if name not in _PUBLIC:
        raise AttributeError(f"module 'shardctl' has no attribute {name!r}")
    module, attribute = _PUBLIC[name]
    return getattr(importlib.import_module(module), attribute)
