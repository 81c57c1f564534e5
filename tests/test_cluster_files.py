"""The files for clusters that pages show can be parsed, and start the parts that they say."""

from __future__ import annotations

import re
import shlex

import click
import pytest
import yaml
from doc_snippets import ROOT

from shardctl.cli import cli

PAGES = ("docs/cluster.md", "docs/tutorials/s3-and-slurm.md")
JOBS = [
    pytest.param(text, id=f"{page}-{number}")
    for page in PAGES
    for number, text in enumerate(
        re.findall(r"```yaml[^\n]*\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    )
]


@pytest.mark.parametrize("text", JOBS)
def test_a_kubernetes_job_starts_each_of_its_parts(text):
    job = yaml.safe_load(text)
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }
    shell, flag, line = container["command"]
    assert (shell, flag) == ("sh", "-c")
    if job["spec"].get("completionMode") == "Indexed":
        assert f'--part "$JOB_COMPLETION_INDEX/{job["spec"]["completions"]}"' in line
    check_usage(line)


def test_a_slurm_script_calls_shardctl_as_it_can_be_called():
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", "")
        for line in re.findall(
            r"^(shardctl [^\n]*SLURM_ARRAY_TASK_COUNT[^\n]*)", text, re.MULTILINE
        ):
            check_usage(line)


def check_usage(line: str) -> None:
    """Fail if the command line is wrong. Variables stand for numbers."""
    program, name, *arguments = shlex.split(re.sub(r"\$\w+", "1", line))
    assert program == "shardctl"
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    command.make_context(name, arguments)
