"""What a person declares of an own function or class: its version, and the modules that it depends on."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from shardctl.errors import UsageError
from shardctl.system.dataclass import dataclass
from shardctl.system.files import read_bytes

Code = TypeVar("Code", bound=Callable[..., Any])

ATTRIBUTE = "__shardctl_declared__"


@dataclass(frozen=True)
class Declared:
    """What stands for the code of a function in the fingerprint of a dataset: its version, and the content of modules."""

    version: str
    modules: tuple[str, ...]

    def digest(self, target: str) -> str:
        """Return the SHA-256, in hex. Raises UsageError if a module cannot be imported, or has no file."""
        files = {module: _module_digest(target, module) for module in self.modules}
        return hashlib.sha256(json.dumps([self.version, files], sort_keys=True).encode()).hexdigest()


def transform(*, version: str, modules: Iterable[str | ModuleType] = ()) -> Callable[[Code], Code]:
    """Declare the version of a function or class that is a step of recipes.

        @shardctl.transform(version="2", modules=["my.helpers"])
        def sharpen(sample): ...

    Without it, each change in the file of the function makes another dataset, even a change of a comment. With it, only the
    version counts, and the content of the `modules`. List the modules with code that the function calls, as names or as
    imported modules. For a package, all of its Python files count. Give a new version if the function returns other values.
    Raises UsageError.
    """
    if not isinstance(version, str) or not version:
        raise UsageError(f'the version of a transform is a string, such as "2"; it is {version!r}')
    if isinstance(modules, str):
        raise UsageError(f"modules takes a list of modules; write modules=[{modules!r}]")
    if not isinstance(modules, Iterable):
        raise UsageError(f"modules takes a list of modules; it is {modules!r}")
    names = tuple(each.__name__ if isinstance(each, ModuleType) else each for each in modules)
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"modules takes a list of modules; it is {modules!r}")

    def declare(code: Code) -> Code:
        if not callable(code):
            raise UsageError(f"a transform is a function or a class; it is {code!r}")
        setattr(code, ATTRIBUTE, Declared(version, names))
        return code

    return declare


def declared(code: Any) -> Declared | None:
    """Return what was declared of a function or of this very class, None if nothing was."""
    found = getattr(code, "__dict__", {}).get(ATTRIBUTE)
    return found if isinstance(found, Declared) else None


def _module_digest(target: str, name: str) -> str:
    try:
        module = importlib.import_module(name)
    except Exception as error:  # a person's module may raise anything
        raise UsageError(f"transform {target}: cannot import {name}, which it depends on ({error})") from error
    files = [file for folder in getattr(module, "__path__", ()) for file in sorted(Path(folder).rglob("*.py"))]
    if not files and getattr(module, "__file__", None):
        files = [Path(str(module.__file__))]
    if not files:
        raise UsageError(f"transform {target}: {name}, which it depends on, has no file")
    try:
        return hashlib.sha256(b"".join(hashlib.sha256(read_bytes(file)).digest() for file in files)).hexdigest()
    except OSError as error:
        raise UsageError(f"transform {target}: a file of {name}, which it depends on, cannot be read ({error})") from error
