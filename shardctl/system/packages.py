"""What pip installs an optional package by, as it is right for how this copy of shardctl was
installed.

An extra can be asked for by the name of shardctl only where pip finds shardctl by its name: on an
index. A copy from a wheel file, a folder or a repository has a record of where it came from
(direct_url.json). Its messages name the packages themselves.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from shlex import quote

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


def to_install(extra: str) -> str:
    """Return what to write after `pip install` for the packages of an extra, quoted for a shell."""
    from importlib.metadata import PackageNotFoundError, distribution

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
    packages = " ".join(map(quote, packages_of(extra, requirements)))
    return packages or (quote(f"{clone}[{extra}]") if is_clone else _by_name(extra))


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
    return all(_holds(here[name], sign, value) for name, sign, value in _CONDITION.findall(marker))


def _holds(here: str, sign: str, value: str) -> bool:
    if sign in ("==", "!="):
        return (here == value) == (sign == "==")
    ours, theirs = (tuple(map(int, version.split("."))) for version in (here, value))
    return {"<": ours < theirs, "<=": ours <= theirs, ">": ours > theirs, ">=": ours >= theirs}[
        sign
    ]


def _by_name(extra: str) -> str:
    return f"'{NAME}[{extra}]'"
