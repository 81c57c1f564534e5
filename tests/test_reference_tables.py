"""The tables of environment variables, exit codes, reject codes and findings have all that the code
has, and nothing else; the entries of docs/troubleshooting.md are about messages that there are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import cluster_costs
from doc_snippets import ROOT

from shardctl.cli import COMMANDS
from shardctl.system.messages import ANY, all_entries

EXIT_CODES = "exit-codes.md"
VARIABLE = re.compile(r"_?[A-Z][A-Z0-9]*(_[A-Z0-9]+)+|RANK|TERM|TMPDIR|DISPLAY|BROWSER")
CODE = re.compile(r"[a-z]+(-[a-z0-9]+)*")


class Module(NamedTuple):
    """What is in a module: its strings, the names and attributes that it uses, its calls by name,
    and its constants."""

    path: str
    strings: set[str]
    words: set[str]
    calls: list[tuple[str, ast.Call]]
    constants: dict[str, set[str]]


def strings(tree: ast.AST) -> Iterator[str]:
    return (
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


@cache
def modules() -> list[Module]:
    return [module_of(path) for path in sorted((ROOT / "shardctl").rglob("*.py"))]


def module_of(path: Path) -> Module:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = Module(str(path), set(), set(), [], {})
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.strings.add(node.value)
        elif isinstance(node, ast.Name):
            found.words.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.words.add(node.attr)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.calls.append((node.func.id, node))
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            found.constants[statement.targets[0].id] = set(strings(statement.value))
    return found


@cache
def all_strings() -> set[str]:
    return set().union(*(module.strings for module in modules()))


def first_cells(page: str, first: str, last: str | None = None) -> set[str]:
    """Return what stands in quotation marks of code in the first cells of the tables between two
    headings."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").split(f"\n{first}\n", 1)[1]
    text = text.split(f"\n{last}\n", 1)[0] if last else text
    return {
        name
        for cell in re.findall(r"^\| ([^|]*) \|", text, re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", cell)
    }


def read_by_the_code() -> set[str]:
    """Return the names of variables in modules that read the environment, or that have names for
    one that does."""
    reading = [
        it
        for it in modules()
        if it.words & {"environ", "switched_on", "Cloud"}
        or it.path.endswith(("startup.py", "completion.py"))
    ]
    found = {text for module in reading for text in module.strings if VARIABLE.fullmatch(text)}
    return {name for name in found if not name.startswith(("SC_", "O_"))}  # of sysconf, of open


def test_the_page_of_variables_has_those_that_the_code_reads():
    documented = first_cells("environment.md", "## Disks and caches", "## For developers")
    assert sorted(read_by_the_code() | {"PYTHONPATH"}) == sorted(documented)


def test_variables_for_developers_are_read_somewhere():
    places = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "scripts").rglob("*.*"), ROOT / "setup.py"]
    text = "".join(
        path.read_text(encoding="utf-8") for path in places if path.suffix in (".py", ".sh")
    )
    found = (
        set(re.findall(r"\bSHARDCTL_[A-Z_]+\b", text)) - read_by_the_code() - {"SHARDCTL_COMPLETE"}
    )
    documented = first_cells("environment.md", "## For developers")
    assert sorted(found) == sorted(documented)


def test_each_command_says_when_its_exit_code_is_one():
    documented = first_cells(EXIT_CODES, "## Exit codes", "## Rejects")
    assert sorted(documented) == sorted(name for names in COMMANDS.values() for name in names)


@cache
def constants() -> dict[str, set[str]]:
    """Return the strings of the constants of the package, by name."""
    found: dict[str, set[str]] = {}
    for module in modules():
        for name, texts in module.constants.items():
            found.setdefault(name, set()).update(texts)
    return found


def codes_of(call: ast.Call, place: int) -> set[str]:
    """Return the codes that an argument of a call can be: also a constant of the package, or one of
    two."""
    if len(call.args) <= place or isinstance(
        call.args[place], ast.Starred | ast.Subscript | ast.JoinedStr
    ):
        return set()
    found = set(strings(call.args[place]))
    for node in ast.walk(call.args[place]):
        if isinstance(node, ast.Name):
            found |= constants().get(node.id, set())
    return {text for text in found if CODE.fullmatch(text)}


def called(*functions: str) -> Iterator[tuple[str, ast.Call]]:
    return (
        (module.path, call)
        for module in modules()
        for name, call in module.calls
        if name in functions
    )


def test_each_code_of_a_reject_is_in_the_reference():
    raised = {code for _, call in called("Rejection") for code in codes_of(call, 1)}
    raised |= {code for _, call in called("refused") for code in codes_of(call, 0)}
    documented = first_cells(EXIT_CODES, "### The file", "## Findings of `verify`")
    of_verify_alone = {"more"}
    assert sorted(raised - documented - of_verify_alone) == []
    of_kinds = ("parquet", "arrow", "array-record", "hdf5", "lmdb")
    made_of_a_kind = {f"not-{kind}" for kind in of_kinds}
    assert sorted(documented - all_strings() - made_of_a_kind) == []


def test_each_finding_of_verify_is_in_the_reference():
    checks = ("inspection/verify", "interop/foreign")
    calls = [
        call
        for path, call in called("error", "warning", "Fault")
        if any(place in path for place in checks)
    ]
    raised = {code for call in calls for code in codes_of(call, 0)}
    documented = first_cells(EXIT_CODES, "## Findings of `verify`")
    assert sorted(raised - documented) == []
    assert sorted(documented - all_strings()) == []


def test_each_stage_of_a_reject_is_in_the_reference():
    stages = first_cells(EXIT_CODES, "## Rejects", "### The file")
    raised = {code for _, call in called("Rejection", "Reject") for code in codes_of(call, 0)}
    assert sorted(raised - stages) == []


def test_the_page_of_large_clusters_has_the_tables_of_its_script():
    page = (ROOT / "docs" / "explanation" / "scale.md").read_text(encoding="utf-8")
    for name, table in cluster_costs.tables().items():
        assert f"<!-- {name} -->\n{table}\n\n" in page, "scripts/bench/cluster_costs.py prints it"


SHORTEST = 4
"""Letters: a shorter part between two values is in too many messages."""


def test_each_quoted_message_is_in_the_source():
    source = "\n".join(all_strings())
    gone = [
        (entry.name, part)
        for entry in all_entries()
        for said in entry.says
        for part in said.split(ANY)
        if len(part.strip()) >= SHORTEST and part not in source
    ]
    assert gone == [], "quote these messages as they are now, or remove their entries"


def test_each_entry_of_a_message_has_a_name_of_its_own_and_says_what_to_do():
    entries = all_entries()
    assert len({entry.name for entry in entries}) == len(entries)
    assert [entry.name for entry in entries if not (entry.do and any(entry.says))] == []
