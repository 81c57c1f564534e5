"""Old import paths that the documents have named: they lead to the modules of today for one release, with a warning."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {"shardctl.exports": "shardctl.interop.exports", "shardctl.exports.exporting": "shardctl.interop.exports.exporting"}
"""The name of a module in version 0.1, and its name today."""


class MovedModules:
    """Finds the modules of MOVED by their old names. What comes of it is the module of today itself, no second one.

    It has no base class: `importlib.abc` imports 20 modules that no command needs (6 ms).
    """

    def find_spec(self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        """Return how a module of an old name is loaded; None for all others."""
        return ModuleSpec(fullname, self) if fullname in MOVED else None  # type: ignore[arg-type]  # it has both methods

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module of today, and warn of the old name."""
        now = MOVED[spec.name]
        warnings.warn(
            f"{spec.name} is {now} now, and the old name ends with the next release. Public functions are found in shardctl"
            " itself, such as shardctl.export",
            DeprecationWarning,
            stacklevel=2,
        )
        return importlib.import_module(now)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is: it was loaded by its own name. The import system has changed its spec."""
        module.__spec__ = importlib.machinery.PathFinder.find_spec(module.__name__, _path_of_parent(module.__name__))


def _path_of_parent(name: str) -> Sequence[str]:
    return list(sys.modules[name.rpartition(".")[0]].__path__)


def find_moved_modules() -> None:
    """Have old import paths found, for the rest of this process."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.insert(0, MovedModules())  # the path of a moved package would find its modules a second time
