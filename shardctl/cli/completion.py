"""`shardctl completion`, and what the Tab key finds: beside commands and options, the values of
options.

A shell runs shardctl for each Tab. So this file imports nothing that takes long, such as Arrow and
the class of a manifest.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    shell_complete,
)

from shardctl.cli import ALL_COMMANDS, cli
from shardctl.cli.command import command, context_of
from shardctl.cli.output import Output, output_options
from shardctl.system.text import printable

VARIABLE = "_SHARDCTL_COMPLETE"


@command(
    examples=(
        'eval "$(shardctl completion bash)"  # in ~/.bashrc',
        'eval "$(shardctl completion zsh)"  # in ~/.zshrc, below compinit',
        "shardctl completion fish | source  # in ~/.config/fish/config.fish",
    )
)
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(("bash", "zsh", "fish")))
@output_options
@click.pass_context
def completion(context: click.Context, shell: str, output: Output) -> None:
    """Print the script that completes commands, options and their values in a shell when you press
    Tab."""
    script = SHELLS[shell](context.find_root().command, {}, "shardctl", VARIABLE).source()
    output.show({"shell": shell, "script": script}, [script])


def complete() -> None:
    """Answer a shell. It gets no message if something is wrong: that would be printed into the line
    that a person types."""
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    for class_ in SHELLS.values():
        add_completion_class(class_)
    code = shell_complete(cli, {}, "shardctl", VARIABLE, os.environ[VARIABLE])
    sys.stdout.flush()
    os._exit(code)


Values = Callable[[Sequence[Path]], Mapping[str, str]]
"""Returns what a value may be, and a text for people with each, from the words of the line so far:
some are paths."""


def _splits(words: Sequence[Path]) -> dict[str, str]:
    return {split["name"]: f"{split['samples']:,} samples" for split in _manifest(words)["splits"]}


def _columns(words: Sequence[Path]) -> dict[str, str]:
    return {column["name"]: column["type"] for column in _manifest(words)["schema"]}


def _manifest(words: Sequence[Path]) -> Any:
    """Return the manifest of the first dataset of this machine that is named."""
    return json.loads(
        next(
            word / "manifest.json" for word in words if (word / "manifest.json").is_file()
        ).read_bytes()
    )


def _steps(_: Sequence[Path]) -> dict[str, str]:
    """Return the steps of recipes: the schema has them, and the steps themselves take long to
    import."""
    from shardctl.system.packages import documents

    schema = json.loads((documents() / "recipe.schema.json").read_bytes())["definitions"]
    names = [step["$ref"].rpartition("/")[2] for step in schema["step"]["oneOf"]]
    return {name: schema[name].get("description", "") for name in names}


def _recipes(_: Sequence[Path]) -> dict[str, str]:
    from shardctl.transforms.recipe_files.ready import ready_recipes

    return ready_recipes()


_CONVERTING = ("convert", "preview", "advise")

_VALUES: dict[tuple[str, str], Values] = {
    **{(command, "split"): _splits for command in ("bench", "export", "inspect")},
    **{(command, "columns"): _columns for command in ("export", "inspect")},
    **{(command, "steps"): _steps for command in _CONVERTING},
    **{(command, "recipe"): _recipes for command in (*_CONVERTING, "tokenizer train")},
    ("recipe check", "file"): _recipes,
    ("recipe show", "dst"): _recipes,
}
"""What is completed, by the command and the name of its parameter. Words of a choice and paths are
completed by click."""

_PLAIN_WORD = re.compile(r"[\w@%+=:,./][\w@%+=:,./-]*")
"""What no shell takes for more than a word."""


class _Completing(ShellComplete):
    """What click completes, and the values above."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """Return what the word may become; nothing if something is wrong."""
        try:
            if not args and not incomplete.startswith("-"):
                return _items(ALL_COMMANDS, incomplete)
            asked = context_of(click.Context(self.cli, info_name=self.prog_name), args)
            path = asked.command_path.partition(" ")[2]
            if isinstance(asked.command, click.Group) and path.split() != args:
                return []  # there is no such command
            for parameter in asked.command.params:
                if found := _VALUES.get((path, parameter.name or "")):
                    _complete_with(parameter, found, args)
            items = super().get_completions(args, incomplete)
            # the shell replaces all of --split=v
            if incomplete.startswith("--") and "=" in incomplete:
                for item in items:
                    item.value = f"{incomplete.partition('=')[0]}={item.value}"
            return items
        except Exception:  # noqa: BLE001 - whatever it is, the line that a person types stays as it is
            return []


def _complete_with(parameter: click.Parameter, values: Values, words: Sequence[str]) -> None:
    """Let a parameter complete its value with these values."""

    def completed(ctx: click.Context, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001 - click's names
        if values is _recipes and not incomplete.startswith("@"):
            return [CompletionItem(incomplete, type="file")]
        # columns are several names, with commas between them
        before, comma, begun = incomplete.rpartition(",")
        return _items(values([Path(word).expanduser() for word in words]), begun, before + comma)

    parameter.shell_complete = completed  # type: ignore[method-assign] # of this object, in a process that only completes


def _items(values: Mapping[str, str], begun: str, before: str = "") -> list[CompletionItem]:
    """Return the values that a word may become.

    The shell puts them into the line as they are, and files of other people name some of them. So
    only plain words are offered.
    """
    return [
        CompletionItem(f"{before}{value}", help=" ".join(printable(text).split()) or None)
        for value, text in values.items()
        if value.startswith(begun) and _PLAIN_WORD.fullmatch(value)
    ]


class _Bash(_Completing, BashComplete):
    """bash, for which @ and = are words of their own: --recipe=@im comes as the words --recipe, =@
    and im."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one at the cursor, and this one."""
        args, incomplete = super().get_completion_args()
        marks = args.pop() if args and args[-1] in ("=", "@", "=@") else ""
        return args, f"{marks}{incomplete}".removeprefix("=")


class _Zsh(_Completing, ZshComplete):
    """zsh."""


class _Fish(_Completing, FishComplete):
    """fish. The script of click would cut off what follows a comma in a value or its text."""

    source_template = FishComplete.source_template.replace(
        'string split ","', 'string split --max 1 ","'
    )


SHELLS: dict[str, type[_Completing]] = {class_.name: class_ for class_ in (_Bash, _Zsh, _Fish)}
