"""What is installed: functions of the user, by their names; the folder docs/; and what installs
an optional package, as it is right for how this copy of shardctl was installed.

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


def installer() -> str:
    """Return the beginning of the command line that installs packages where shardctl runs: by the
    tool that made this environment."""
    prefix = Path(sys.prefix)
    if (prefix / "pipx_metadata.json").exists():
        return f"pipx inject {NAME}"
    settings = prefix / "pyvenv.cfg"
    made_by_uv = settings.exists() and re.search(r"^uv *=", settings.read_text(), re.MULTILINE)
    return f"uv pip install --python {quote(sys.prefix)}" if made_by_uv else "pip install"


def to_install(extra: str) -> str:
    """Return the command line that installs those packages of an extra that are missing."""
    return f"{installer()} {_packages(extra)}"


def _packages(extra: str) -> str:
    from importlib.metadata import PackageNotFoundError, distribution

    def is_missing(requirement: str) -> bool:
        try:
            return not distribution(re.split(r"[^\w.-]", requirement)[0])
        except PackageNotFoundError:
            return True

    clone = Path(__file__).parents[2]
    is_clone = (clone / "pyproject.toml").is_file()
    try:
        found = distribution(NAME)
    except PackageNotFoundError:
        # a folder of source code that is on Python's path, and was never installed
        requirements = []
    else:
        if not is_clone and found.read_text("direct_url.json") is None:
            return _by_name(extra)
        requirements = found.requires or []
    wanted = packages_of(extra, requirements)
    packages = " ".join(map(quote, list(filter(is_missing, wanted)) or wanted))
    return packages or (quote(f"{clone}[{extra}]") if is_clone else _by_name(extra))


def needed(module: str, extra: str, who: str) -> Any:
    """Import a module of an optional package. Raises InstallError, which says what to install:
    `who` needs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InstallError(
            f"{printable(who)} needs {(error.name or module).partition('.')[0]}, which cannot be imported ({error}); "
            f"{to_install(extra)}"
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


def _by_name(extra: str) -> str:
    return f"'{NAME}[{extra}]'"


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
