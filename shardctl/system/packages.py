"""What is installed: functions of the user, by their names, and the folder docs/. Which command
installs an optional package depends on what installed this copy of shardctl.

An extra can be asked for by the name of shardctl only where pip finds shardctl by its name: on an
index. A copy from a wheel file, a folder or a repository has a record of where it came from
(direct_url.json). Its messages name the packages themselves.
"""

from __future__ import annotations

import contextlib
import importlib
import operator
import re
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any

from shardctl.errors import InstallError, UsageError
from shardctl.system.text import did_you_mean, printable

NAME = "shardctl"

_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
_OWN = re.compile(rf"{NAME}\[([^\]]*)\]")
_CONDITION = re.compile(r"""(python_version|sys_platform)\s*(==|!=|<=|>=|<|>)\s*['"]([^'"]+)['"]""")


def installed_version(package: str) -> str:
    """Return the version of a package that is installed as wheels are: by the name of the folder of
    its metadata, if it can.

    `importlib.metadata` takes 20 ms to import. Raises PackageNotFoundError.
    """
    for folder in filter(None, sys.path):
        found = next(Path(folder).glob(f"{package}-*.dist-info"), None)
        if found is not None:
            return found.name.removesuffix(".dist-info").partition("-")[2]
    from importlib import metadata

    return metadata.version(package)


def install_line(extra: str) -> str:
    """Return the command that installs what is missing of an extra, for a shell."""
    return f"{installer()} {packages_to_install(extra)}"


def installer() -> str:
    """Return what installs packages into the environment of this process. `pip` alone may be that
    of another one."""
    from shutil import which

    if Path(sys.prefix, "pipx_metadata.json").is_file():
        return f"pipx inject {NAME}"
    if find_spec("pip") is None:  # as in the environments of uv
        return f"uv pip install --python {quote(sys.prefix)}"
    if which("pip") == str(Path(sys.executable).with_name("pip")):
        return "pip install"
    return f"{quote(sys.executable)} -m pip install"


def packages_to_install(extra: str) -> str:
    """Return the packages of an extra that are not installed; all of them if each is there, and one
    does not work."""
    from importlib import metadata

    clone = Path(__file__).parents[2]
    is_clone = (clone / "pyproject.toml").is_file()
    try:
        found = metadata.distribution(NAME)
    except metadata.PackageNotFoundError:
        # a folder of source code that is on Python's path, and was never installed
        requirements = []
    else:
        if not is_clone and found.read_text("direct_url.json") is None:
            return f"'{NAME}[{extra}]'"
        requirements = found.requires or []
    packages = packages_of(extra, requirements)
    missing = [
        each
        for each in packages
        if not any(metadata.distributions(name=re.split(r"[^\w.-]", each)[0]))
    ]
    return " ".join(map(quote, missing or packages)) or quote(
        f"{clone if is_clone else NAME}[{extra}]"
    )


def needed(module: str, extra: str, who: str) -> Any:
    """Import a module of an optional package. Raises InstallError, which says what to install:
    `who` needs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InstallError(
            f"{printable(who)} needs {(error.name or module).partition('.')[0]}, which cannot be imported ({error}); "
            f"{install_line(extra)}"
        ) from None


def packages_of(extra: str, requirements: list[str]) -> list[str]:
    """Return what an extra asks for on this Python, out of the requirements of shardctl's
    metadata."""
    found: dict[str, None] = {}
    for requirement in requirements:
        wanted, _, marker = (part.strip() for part in requirement.partition(";"))
        named = _EXTRA.search(marker)
        if not named or named[1] != extra or not _applies(marker):
            continue
        if own := _OWN.fullmatch(wanted):
            found.update(
                dict.fromkeys(
                    each
                    for part in own[1].split(",")
                    for each in packages_of(part.strip(), requirements)
                )
            )
        else:
            found[wanted] = None
    return list(found)


def _applies(marker: str) -> bool:
    """Return whether all conditions of a marker hold. Those of shardctl's own table are joined by
    `and` alone."""
    here = {
        "python_version": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "sys_platform": sys.platform,
    }
    return all(
        _COMPARE[sign](_comparable(here[name]), _comparable(value))
        for name, sign, value in _CONDITION.findall(marker)
    )


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _comparable(version: str) -> list[int | str]:
    return [int(part) if part.isdecimal() else part for part in version.split(".")]


def look_in_current_folder() -> None:
    """Let functions be imported from the current folder too, last of all: a folder of data may hold
    a file of any name."""
    if "" not in sys.path:
        sys.path.append("")


_IMPORTING = ContextVar("_IMPORTING", default="")
"""The module that this thread is importing to find functions."""


@contextlib.contextmanager
def _importing(module: str) -> Iterator[None]:
    before = _IMPORTING.set(module)
    try:
        yield
    finally:
        _IMPORTING.reset(before)


def refuse_while_importing(what: str) -> None:
    """Raise UsageError in a module that is being imported to find a function: it would do its own
    work once more, and wait for itself."""
    if module := _IMPORTING.get():
        raise UsageError(
            f"{printable(module)} calls shardctl.{what} when shardctl imports it "
            'for a function. Put the call under `if __name__ == "__main__":`, or the function '
            "into another file"
        )


def find_function(target: str, what: str) -> Callable[..., Any]:
    """Import something that can be called; `what` says in messages what it is for. Raises
    UsageError if there is none.

    `module:object.method` works too. What the module prints when it is imported goes to stderr.
    """
    module, _, name = target.partition(":")
    if module == "__main__":
        raise UsageError(
            f"{what} {target}: worker processes cannot import it from a script; put it into another file"
        )
    parts = name.split(".")
    if not module or module.endswith(".py") or not all(part.isidentifier() for part in parts):
        python = (
            f"; write {module.removesuffix('.py')}:{name or 'FUNCTION'}, without .py"
            if module.endswith(".py")
            else ""
        )
        raise UsageError(f"{what} {target!r} is not of the form module:function{python}")
    try:
        with contextlib.redirect_stdout(sys.stderr), _importing(module):
            found: Any = importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"{what} {target}: cannot import {module} ({error})") from error
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise UsageError(
            f"{what} {target}: importing {module} raised {type(error).__name__}: {error}"
        ) from error
    try:
        for part in parts:
            found = getattr(found, part)
    except AttributeError:
        raise UsageError(
            f"{what} {target}: {module} has no {name}{did_you_mean(parts[-1], dir(found))}"
        ) from None
    if not callable(found):
        raise UsageError(f"{what} {target}: {name} is not a function")
    return found  # type: ignore[no-any-return]  # callable() narrows Any to nothing better


_PACKAGE = Path(__file__).parents[1]

_FOR_DEVELOPERS = "dev"
"""The folder of docs/ with measurements. Neither a wheel nor `shardctl help` has it."""


def documents() -> Path:
    """Return where it is. A wheel has it in the package (setup.py); in a clone it lies beside the
    package."""
    installed = _PACKAGE / "docs"
    return installed if installed.is_dir() else _PACKAGE.parent / "docs"


def pages() -> dict[str, Path]:
    """Return the pages for users by their names, which are the names of the files without .md."""
    folder = documents()
    found = (
        path
        for path in folder.rglob("*.md")
        if path.relative_to(folder).parts[0] != _FOR_DEVELOPERS
    )
    return {path.stem: path for path in sorted(found)}
