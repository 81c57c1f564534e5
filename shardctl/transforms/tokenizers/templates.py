"""Chat templates: messages as one text, by a template of Jinja that says which parts of it the loss counts.

A template is code from elsewhere, so it runs in Jinja's sandbox. It needs the extra `text`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from shardctl.errors import InputError, InstallError, Rejection, first_line
from shardctl.system.dataclass import dataclass
from shardctl.system.packages import to_install

CHATML = """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['role'] == 'assistant' %}
{%- generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}
{%- else %}
{{- message['content'] + '<|im_end|>' }}
{%- endif %}
{{- '\\n' }}
{%- endfor %}"""
"""The built-in template: <|im_start|>ROLE, a line end, the content, <|im_end|>, a line end. The loss counts what an assistant
says, and the <|im_end|> after it.
"""

_BEGIN, _END = "\ufdd0", "\ufdd1"
"""What stands around the parts that the loss counts, while a text is made: two code points that are no characters."""

_TAG = re.compile(r"\{%[-+]?\s*generation\b")


@dataclass(frozen=True)
class Written:
    """A chat as one text, and the parts of it, (start, end) in characters, that the loss counts."""

    text: str
    spans: tuple[tuple[int, int], ...]


class Template:
    """A chat template. Raises InputError if it cannot be read, or does not say what the loss counts."""

    def __init__(self, source: str, special: Mapping[str, str | None], where: str) -> None:
        if not _TAG.search(source):
            raise InputError(
                f"{where}: the chat template does not mark the parts that the loss counts. Put {{% generation %}} and"
                " {% endgeneration %} around the text of an assistant, and give the file as template = FILE.jinja"
            )
        self._template = _environment(where)(source)
        self._names = {name: token for name, token in special.items() if token is not None}

    def write(self, messages: Sequence[Mapping[str, Any]]) -> Written:
        """Return the text of a chat. Raises Rejection if the template refuses it, or it names what is not there."""
        from jinja2 import TemplateError

        if any(mark in text for text in strings_in(list(messages)) for mark in (_BEGIN, _END)):
            raise Rejection("transform", "noncharacter", "a message has U+FDD0 or U+FDD1, which are not characters")
        try:
            made = self._template.render(messages=messages, add_generation_prompt=False, **_NOTHING, **self._names)
        except TemplateError as error:
            raise Rejection("transform", "template", f"the chat template refuses it: {first_line(error)}") from None
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - a template is code from elsewhere, and may raise anything
            message = f"the chat template fails: {type(error).__name__}: {first_line(error)}"
            raise Rejection("transform", "template", message) from None
        return _without_marks(made)


_NOTHING = {"tools": None, "documents": None}
"""What templates may be given beside the messages, and are not."""


def _without_marks(made: str) -> Written:
    parts: list[str] = []
    spans = []
    length, start = 0, 0
    for part in re.split(f"([{_BEGIN}{_END}])", made):
        if part == _BEGIN:
            start = length
        elif part == _END:
            spans.append((start, length))
        else:
            parts.append(part)
            length += len(part)
    return Written("".join(parts), tuple(span for span in spans if span[0] < span[1]))


@lru_cache(maxsize=1)
def _compiler() -> Callable[[str], Any]:
    """Return what compiles templates as transformers does, but that a missing value is an error where it would be written, and
    that nothing is random."""
    from jinja2 import Undefined, nodes
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Missing(Undefined):
        """False in conditions, as templates use it; an error where it would become text."""

        __str__ = Undefined._fail_with_undefined_error
        __iter__ = Undefined._fail_with_undefined_error

    class Generation(Extension):
        """{% generation %} … {% endgeneration %}: what the loss counts."""

        tags = {"generation"}  # noqa: RUF012 - as the base class has it

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("marked"), [], [], body).set_lineno(line)

        def marked(self, caller: Callable[[], str]) -> str:
            return f"{_BEGIN}{caller()}{_END}"

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def no_time(*_: str) -> None:
        raise TemplateError("it writes the time of day, which would make every dataset another one")

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, undefined=Missing, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    del environment.filters["random"], environment.globals["lipsum"]  # the same chats must give the same bytes
    environment.globals |= {"raise_exception": refuse, "strftime_now": no_time}
    compiled: Callable[[str], Any] = environment.from_string
    return compiled


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _environment(where: str) -> Callable[[str], Any]:
    try:
        import jinja2
    except ImportError as error:
        raise InstallError(
            f"chat templates need jinja2, which cannot be imported ({error}); pip install {to_install('text')}"
        ) from None

    def compiled(source: str) -> Any:
        try:
            return _compiler()(source)
        except jinja2.TemplateSyntaxError as error:
            raise InputError(f"{where}: line {error.lineno} of the chat template: {first_line(error)}") from None
        except Exception as error:  # noqa: BLE001 - SyntaxError, RecursionError, MemoryError: Jinja compiles it to Python
            message = f"the chat template cannot be compiled: {type(error).__name__}: {first_line(error)}"
            raise InputError(f"{where}: {message}") from None

    return compiled


def without_missing(value: Any) -> Any:
    """Return a value of a table without the keys whose value is null: Arrow has them in every message."""
    if isinstance(value, dict):
        return {key: without_missing(inner) for key, inner in value.items() if inner is not None}
    return [without_missing(inner) for inner in value] if isinstance(value, list) else value


def strings_in(value: Any) -> Iterator[str]:
    """Yield all strings of a message, names of values too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in (*value.keys(), *value.values()) if isinstance(value, dict) else value:
            yield from strings_in(inner)
