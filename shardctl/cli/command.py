"""A command with help in two steps: `-h` is one screen, `--help` has all options under headings.
Wrong names get an answer."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Sequence
from typing import Any

import click
from click import Context, HelpFormatter

from shardctl.cli.other_words import instead_of_command, instead_of_option
from shardctl.system.text import did_you_mean, printable, some

WIDTH = 80

PATH = click.Path()
"""The type of a path, of which a shell completes the rest."""

_TYPED = f"{__name__}.typed"
"""Where the context of a command has its arguments."""

Function = Callable[..., Any]
"""What a command does."""

Decorator = Callable[[Function], Function]
"""What is written with @ above the function of a command, and adds to its arguments."""

Example = tuple[str, str]
"""A command line, and what it is for."""

SHORT_EXAMPLES = 4
"""How many examples `-h` has."""


class Option(click.Option):
    """An option: the heading in `--help` and its line in `-h`."""

    def __init__(
        self,
        declarations: Sequence[str],
        *arguments: Any,
        heading: str = "",
        brief: str = "",
        **more: Any,
    ) -> None:
        self.heading, self.brief = heading, brief
        super().__init__(declarations, *arguments, **more)

    def get_error_hint(self, ctx: Context | None) -> str:
        """Return how messages call the option."""
        return f"'{option_name(self)}'"


def option_name(parameter: click.Parameter | None) -> str:
    """Return the name of an option or an argument as the user types it: the long one."""
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=lambda name: name.startswith("--"))
    return (parameter.human_readable_name if parameter is not None else "") or ""


def _long_options(command: click.Command) -> list[str]:
    options = (each for each in command.params if isinstance(each, click.Option))
    return [name for each in options for name in each.opts if name[:2] == "--"]


def _steps() -> Collection[str]:
    from shardctl.transforms.table import TRANSFORMS  # only a message needs them

    return TRANSFORMS


class _WithExamples(click.Command):
    """A command with examples in its help, which answers an option that is not known. An example is
    a line, with what it is for behind two spaces and #."""

    def __init__(self, *arguments: Any, examples: Sequence[str] = (), **others: Any) -> None:
        super().__init__(*arguments, **others)
        parts = (each.partition("  # ") for each in examples)
        self.examples: list[Example] = [(line, comment) for line, _, comment in parts]

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Read the arguments. An unknown option is answered, and one that is given twice named."""
        ctx.meta[_TYPED] = given = list(args)
        for each in given:
            if each.startswith(("—", "–")):  # editors make them of two signs  # noqa: RUF001
                raise click.UsageError(f"there is no option {printable(each)}", ctx)
        try:
            self._warn_of_repeated(ctx, args)
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise click.UsageError(self.answer(ctx, error.option_name, given), ctx) from None

    def _warn_of_repeated(self, ctx: Context, args: list[str]) -> None:
        if ctx.resilient_parsing:  # the Tab key
            return
        _, _, order = self.make_parser(ctx).parse_args(list(args))
        for each in dict.fromkeys(order):
            once = isinstance(each, click.Option) and not (each.multiple or each.is_flag)
            if once and order.count(each) > 1:
                name = option_name(each)
                click.echo(f"warning: {name} is given twice; the last one counts", err=True)

    def answer(self, ctx: Context, option: str, given: Sequence[str]) -> str:
        """Return the sentence about an option that there is not, as click calls it, among the
        arguments that were given, with those that are similar."""
        typed = next((each for each in given if each.startswith(option)), option).partition("=")[0]
        names, there = _long_options(self), f"there is no option {printable(typed)}"
        if use := instead_of_option(typed, names):
            return there + use
        if "--step" in names and (step := typed.strip("-").replace("-", "_")) in _steps():
            return f"{there}; use --step {step}"
        if meant := did_you_mean(typed, names):
            return there + meant
        above = ctx.parent.command if ctx.parent is not None else None
        group = above if isinstance(above, click.Group) else click.Group()
        found = {name: group.get_command(ctx, name) for name in group.list_commands(ctx)}
        others = [name for name, each in found.items() if each and typed in _long_options(each)]
        if others:
            return f"{there} here; it is an option of {some(others)}"
        return f"{there}; `{ctx.command_path} --help` lists all"

    def format_help_text(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the description, and the examples after it."""
        super().format_help_text(ctx, formatter)
        _write_examples(formatter, self.examples)


class Command(_WithExamples):
    """A command. `examples` are in both helps, and `headings` order the options."""

    def __init__(
        self,
        *arguments: Any,
        headings: Sequence[str] = (),
        takes_options_of_convert: bool = False,
        **others: Any,
    ) -> None:
        super().__init__(*arguments, **others)
        self.headings = headings
        self.takes_options_of_convert = takes_options_of_convert
        has_short_help = any(isinstance(each, Option) and each.brief for each in self.params)
        self.context_settings.setdefault(
            "help_option_names", ["--help"] if has_short_help else ["-h", "--help"]
        )
        if has_short_help:
            what = "Show the options that most people need."
            self.params.append(telling(["-h", "short_help"], self.short_help_page, what))

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the options, under their headings."""
        # what most people need comes first
        shown = sorted(self._shown(ctx), key=lambda each: not getattr(each[0], "brief", ""))
        for heading in [*self.headings, ""]:
            named = [record for each, record in shown if self._heading(each) == heading]
            if named:
                with formatter.section(heading or "Options"):
                    formatter.write_dl(named)
        if self.takes_options_of_convert:
            formatter.write_paragraph()
            formatter.write_text(
                "It also takes the options of convert for reading SRC and for steps; "
                "`shardctl convert --help` lists them."
            )

    def _shown(self, ctx: Context) -> list[tuple[click.Option, tuple[str, str]]]:
        """Return the options that are listed, each with its line."""
        return [
            (each, record)
            for each in self.get_params(ctx)
            if isinstance(each, click.Option) and (record := each.get_help_record(ctx))
        ]

    def _heading(self, option: click.Option) -> str:
        """Return the heading of an option. One that has none of these is under the last; without
        headings it is under none."""
        own = getattr(option, "heading", "")
        return own if own in self.headings else self.headings[-1] if self.headings else ""

    def short_help_page(self, ctx: Context) -> str:
        """Return the help of `-h`: one screen."""
        formatter = ctx.make_formatter()
        self.format_usage(ctx, formatter)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(" ".join((self.help or "").strip().split("\n\n")[0].split()))
        _write_examples(formatter, self.examples[:SHORT_EXAMPLES])
        shown = self._shown(ctx)
        headings = [*self.headings, ""]
        with formatter.section("Options that most people need"):
            formatter.write_dl(
                [
                    (record[0], each.brief)
                    for each, record in sorted(
                        shown, key=lambda each: headings.index(self._heading(each[0]))
                    )
                    if isinstance(each, Option) and each.brief
                ]
            )
        formatter.write_paragraph()
        formatter.write_text(f"`{ctx.command_path} --help` shows all {len(shown)} options.")
        return formatter.getvalue().rstrip("\n")


class Group(_WithExamples, click.Group):
    """A command that has others. A wrong name of one is answered."""

    command_class = Command

    def answer(self, ctx: Context, option: str, given: Sequence[str]) -> str:
        """Return the sentence about an option before the name of a command."""
        return (
            f"there is no option {option}; options stand behind the name of a command; `shardctl "
            "--version` shows the version"
        )

    def resolve_command(
        self, ctx: Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name. Raises UsageError that says which one was
        meant."""
        if (
            ctx.resilient_parsing
            or args[0].startswith("-")
            or self.get_command(ctx, args[0]) is not None
        ):
            return super().resolve_command(ctx, args)
        names = self.list_commands(ctx)
        answer = did_you_mean(args[0], names)
        if ctx.parent is not None:
            answer = answer or f"; there are {', '.join(names)}"
        else:
            answer = instead_of_command(args[0]) or answer or "; `shardctl -h` lists the commands"
        raise click.UsageError(f"there is no command {args[0]!r}{answer}", ctx)


def context_of(context: Context, words: Sequence[str]) -> Context:
    """Return the context of the command that the first of some words name, below that of another
    one."""
    for word in words:
        outer = context.command
        inner = outer.get_command(context, word) if isinstance(outer, click.Group) else None
        if inner is None:
            break
        context = Context(inner, parent=context, info_name=word)
    return context


def command(**settings: Any) -> Callable[[Function], Command]:
    """Return the decorator of a command. The settings are those of Command, and of click's."""
    return click.command(cls=Command, **settings)


def path_argument(name: str, metavar: str, **settings: Any) -> Decorator:
    """Return the decorator of an argument that is a path, or several. The settings are click's."""
    return click.argument(name, metavar=metavar, type=PATH, **settings)


DST = path_argument("dst", "DST")
"""The decorator of a command that changes a dataset."""

SRC = path_argument("src", "SRC...", nargs=-1, required=True)
"""The decorator of a command that reads sources."""


def option(declaration: str, help: str, *, name: str = "", **settings: Any) -> Decorator:
    """Return the decorator of an option, which the command gets under its own name or another one.

    The settings are those of Option, and of click's. An option with a default shows it, and one
    with nothing that says what its value is has none: it is a flag.
    """
    is_flag = {"type", "metavar", "callback"}.isdisjoint(settings)
    return click.option(
        *filter(None, (declaration, name)),
        cls=Option,
        help=help,
        is_flag=is_flag or None,  # False is an option whose value may be left out
        show_default="default" in settings,
        **settings,
    )


def telling(names: Sequence[str], text_of: Callable[[Context], str], help: str) -> Option:
    """Return an option that prints a text instead of running the command."""

    def show(context: Context, _parameter: click.Parameter, wanted: bool) -> None:
        if wanted and not context.resilient_parsing:
            click.echo(text_of(context))
            context.exit()

    return Option(names, is_flag=True, is_eager=True, expose_value=False, callback=show, help=help)


OF_OUTPUT = ("html", "open", "as_json", "quiet", "verbose", "no_progress")
"""The parameters that say where a result goes, and what is told meanwhile."""


def with_same_options(begin: Sequence[str], without: Collection[str]) -> str:
    """Return a command line: its beginning, and the options that were given to the command that
    runs, as they were typed.

    `without` has the names of parameters that are left out, as are those of output and the
    command's arguments.
    """
    context = click.get_current_context()
    given, _, _ = context.command.make_parser(context).parse_args(list(context.meta[_TYPED]))
    words = list(begin)
    for each in context.command.params:
        left_out = each.name not in given or each.name in (*OF_OUTPUT, *without)
        if left_out or not isinstance(each, click.Option):
            continue
        name, value = option_name(each), given[each.name]
        for one in value if isinstance(value, list) else [value]:
            if each.is_flag:
                words.append(name if one else each.secondary_opts[0])
            else:
                parts = [one] if isinstance(one, str) else list(one)
                words += (
                    [f"{name}={one}"]
                    if len(parts) == 1 and parts[0].startswith("-")
                    else [name, *parts]
                )
    return shlex.join(words)


def _write_examples(formatter: HelpFormatter, examples: Sequence[Example]) -> None:
    """Write examples: each on a line with its comment where both fit, else with the comment above
    it."""
    if not examples:
        return
    widest = max(len(line) for line, _ in examples)
    beside = all(widest + 4 + len(comment) <= WIDTH - 3 for _, comment in examples)
    with formatter.section("Examples"):
        for line, comment in examples:
            if beside:
                formatter.write(f"  {line.ljust(widest)}  {comment}".rstrip() + "\n")
            else:
                formatter.write((f"  # {comment}\n" if comment else "") + f"  {line}\n")
