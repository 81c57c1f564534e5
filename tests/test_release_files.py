"""The files of a release, of CI and of issues are right: what they call is there, and they agree
with pyproject.toml."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import shardctl
from shardctl.cli import COMMANDS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())


def pythons() -> list[str]:
    found = (
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", each)
        for each in PROJECT["classifiers"]
    )
    return [each[1] for each in found if each]


def steps() -> list[dict[str, Any]]:
    return [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]


def test_ci_tests_the_pythons_that_pyproject_names():
    assert WORKFLOW["jobs"]["test"]["strategy"]["matrix"]["python"] == pythons()
    assert PROJECT["requires-python"] == f">={pythons()[0]}"
    named = [
        str(step["with"]["python-version"])
        for step in steps()
        if "python-version" in step.get("with", {})
    ]
    assert set(named) <= {*pythons(), "${{ matrix.python }}"}


def test_what_ci_calls_is_there():
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    commands = [step["run"] for step in steps() if "run" in step]
    for command in commands:
        program, *arguments = command.split()
        if program == "make":
            assert set(arguments) <= set(targets), command
        for script in re.findall(r"\S+\.py\b", command):
            assert (ROOT / script).is_file(), command
        if program == "shardctl":
            assert arguments[0] in {name for names in COMMANDS.values() for name in names}
    assert {"make lint", "make test"} <= set(commands)
    for step in steps():
        assert "run" in step or re.fullmatch(r"[\w.-]+/[\w.-]+@v\d+", step["uses"])


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.name
)
def test_the_forms_of_issues_are_forms(path):
    form = yaml.safe_load(path.read_text())
    if path.name == "config.yml":
        assert form == {"blank_issues_enabled": True}
        return
    assert {"name", "description", "body"} <= set(form)
    names = [each["id"] for each in form["body"]]
    assert len(names) == len(set(names))
    assert all(
        each["type"] in ("textarea", "input", "dropdown") and each["attributes"]["label"]
        for each in form["body"]
    )


def test_all_files_name_one_version(tmp_path):
    script = runpy.run_path(str(ROOT / "scripts" / "release.py"))
    assert script["version_of"](ROOT) == shardctl.__version__
    for name in ("shardctl/version.py", "CHANGELOG.md", "CITATION.cff", "conda/meta.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    assert script["version_of"](tmp_path) == shardctl.__version__
    (tmp_path / "CITATION.cff").write_text("version: 0.0.1\n")
    with pytest.raises(script["NotReadyError"], match=r"CITATION.cff names version 0.0.1"):
        script["version_of"](tmp_path)


def test_the_changelog_has_its_form():
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    assert all(
        re.fullmatch(r"\[\d+\.\d+\.\d+(rc\d+)?\] - \d{4}-\d\d-\d\d", each) for each in headings[1:]
    )
    kinds = set(re.findall(r"^### (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_image_installs_extras_that_exist_and_runs_shardctl():
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    (extras,) = (
        line.partition("EXTRAS=")[2].split(",") for line in lines if line.startswith("ARG EXTRAS=")
    )
    assert set(extras) <= set(EXTRAS)
    bases = [line.split()[1] for line in lines if line.startswith("FROM")]
    assert all(re.fullmatch(r"python:(.+)-slim", base)[1] in pythons() for base in bases)  # type: ignore[index]
    assert 'ENTRYPOINT ["shardctl"]' in lines
    assert any(line.startswith("USER ") and line != "USER root" for line in lines)
    copied = [
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    assert all((ROOT / name).exists() for name in copied)
    assert {"pyproject.toml", "setup.py", "shardctl", "docs", "README.md", "LICENSE"} <= set(copied)


def test_the_conda_recipe_requires_what_the_wheel_requires():
    text = (ROOT / "conda" / "meta.yaml").read_text()
    listed = text.partition("  run:\n")[2].partition("\n\n")[0]
    conda = {
        re.sub(r"^python-", "", name): least
        for name, least in re.findall(r"- ([\w-]+) >=([\d.]+)", listed)
    }
    wheel = dict(re.match(r"([\w-]+)>=([\d.]+)", each).groups() for each in PROJECT["dependencies"])  # type: ignore[union-attr]
    assert conda == wheel


def test_all_is_every_extra_without_the_frameworks():
    def inner(extra: str) -> set[str]:
        found = {extra}
        for requirement in EXTRAS[extra]:
            if own := re.match(r"shardctl\[(.*)\]", requirement):
                found |= {each for name in own[1].split(",") for each in inner(name)}
        return found

    assert set(EXTRAS) - inner("all") == {"dev", "torch", "tensorflow", "jax", "ray"}


def test_man_pages_of_all_commands_are_troff_without_faults(tmp_path):
    script = [sys.executable, str(ROOT / "scripts" / "docs" / "write_man_pages.py"), str(tmp_path)]
    subprocess.run(script, check=True, capture_output=True)
    pages = sorted((tmp_path / "man" / "man1").iterdir())
    commands = {f"shardctl-{name}.1" for names in COMMANDS.values() for name in names}
    assert commands | {"shardctl.1"} <= {path.name for path in pages}
    for place in (
        "bash-completion/completions/shardctl",
        "zsh/site-functions/_shardctl",
        "fish/vendor_completions.d/shardctl.fish",
    ):
        assert "shardctl" in (tmp_path / place).read_text()
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    drawn = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", *pages], capture_output=True, text=True, check=True
    )
    assert drawn.stderr == ""
    assert "--max-rejects" in re.sub(".\b", "", drawn.stdout)
