"""Chat templates: messages as one text, by a template of Jinja that says which parts of it the loss
counts.

A template is code from elsewhere, so it runs in Jinja's sandbox. It needs the extra `text`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

from shardctl.errors import InputError, Rejection, first_line
from shardctl.system.packages import needed

CHATML = Path(__file__).with_name("chatml.jinja").read_text("utf-8").rstrip()
"""The built-in template: <|im_start|>ROLE, a line end, the content, <|im_end|>, a line end. The
loss counts what an assistant says, and the <|im_end|> after it.
"""

MARKS = _BEGIN, _END, _MARK = "\ufdd0", "\ufdd1", "\ufdd2"
"""Code points that are no characters. While a text is made, two stand around the parts that the
loss counts, and one at values that are looked for. No message has them."""

_TAG = re.compile(r"\{%[-+]?\s*generation\b")


Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Any] | None

_KNOWN = frozenset(("role", "weight", "type", "id"))
"""What of a message, and of objects in it, is not looked for in the text."""

_PLAIN = frozenset(("role", "content", "weight"))

_FIRST = re.compile(r"\s*(<[^<>]*>|\S+)")
"""Templates look at what a text begins and ends with, and divide it at its tags."""

_REASONING = ("reasoning_content", "thinking", "reasoning")


@dataclass(frozen=True)
class Written:
    """A chat as one text, and the parts of it, (start, end) in characters, that the loss counts.

    `unwritten` names what is in the messages and the tools and makes no difference to the text.
    """

    text: str
    spans: tuple[tuple[int, int], ...]
    unwritten: tuple[str, ...] = ()


class Template:
    """A chat template. Raises InputError if it cannot be read. `day` is what it gets where it asks
    for that of today."""

    def __init__(
        self, source: str, special: Mapping[str, str | None], where: str, day: date | None = None
    ) -> None:
        self._marks = bool(_TAG.search(source))
        self._template = _compiled(source, where)
        names = {name: token for name, token in special.items() if token is not None}
        self._form = lru_cache(maxsize=256)(self._form_of)
        self._names = {"documents": None, "strftime_now": partial(_formatted, day), **names}

    def write(self, messages: Messages, tools: Tools = None) -> Written:
        """Return the text of a chat. Raises Rejection if the template refuses it, or it names what
        is not there.

        The loss counts what is between the tags of generation; without them, what each answer adds
        to the text of the messages before it and the beginning of an answer. It counts no answer
        whose weight is 0.
        """
        written = self._rendered(messages, tools)
        spans = list(written.spans)
        for place, message in enumerate(messages):
            if message["role"] == "assistant" and bool(message.get("weight", 1)) != self._marks:
                begin, end = self._part(messages, tools, place, written.text)
                spans = [*_outside(spans, begin, end)] if self._marks else [*spans, (begin, end)]
        return Written(written.text, tuple(spans), self._unwritten(messages, tools, written.text))

    def _part(self, messages: Messages, tools: Tools, place: int, text: str) -> tuple[int, int]:
        """Return the part of a text that one answer is, its head too where tags say what counts.
        Raises Rejection."""
        before = self._rendered(messages[:place], tools, add_generation_prompt=not self._marks).text
        after = (
            text
            if place + 1 == len(messages)
            else self._rendered(messages[: place + 1], tools).text
        )
        if not (text.startswith(after) and after.startswith(before) and after != before):
            message = (
                f"the template writes message {place + 1} of {len(messages)} in another way without "
                "what follows it; put {% generation %} and {% endgeneration %} into it"
            )
            raise Rejection("transform", "unstable", message)
        return len(before), len(after)

    def _unwritten(self, messages: Messages, tools: Tools, text: str) -> tuple[str, ...]:
        """Return the names of the values in messages and tools that can be others, and the text is
        the same."""

        def text_with(chosen: Collection[int]) -> str:
            try:
                return self._rendered(*_marked(messages, tools, chosen)[1:]).text
            except Rejection:
                return ""

        said = [message["content"] for message in messages if message.keys() <= _PLAIN]
        if len(said) == len(messages) and not tools:
            form = self._form(tuple(message["role"] for message in messages))
            texts = len(form) == len(said) + 1 and all(isinstance(each, str) for each in said)
            if texts and "".join(chain.from_iterable(zip(form, [*said, ""], strict=True))) == text:
                return ()
        names = _marked(messages, tools, ())[0]
        # some count its letters
        marked = text_with({place for place, name in enumerate(names) if not name.endswith("_id")})
        left = {place for place in range(len(names)) if f"{_MARK}{place}." not in marked}
        # a template may look at a value, and write another one or none
        if left and text_with(left) != text:
            left = {place for place in left if text_with({place}) == text}
        return tuple(sorted({names[place] for place in left}))

    def _form_of(self, roles: Sequence[str]) -> list[str]:
        """Return what a template writes around the contents of messages, if there is nothing else
        in them."""
        with suppress(Rejection):
            return self._rendered(
                [{"role": role, "content": _MARK} for role in roles], None
            ).text.split(_MARK)
        return []

    def _rendered(
        self, messages: Messages, tools: Tools, add_generation_prompt: bool = False
    ) -> Written:
        from jinja2 import TemplateError

        given = [_as_given(message) for message in messages]
        try:
            made = self._template.render(
                messages=given,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                **self._names,
            )
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - a template is code from elsewhere, and may raise anything
            did = "refuses it" if isinstance(error, TemplateError) else ""
            message = f"the chat template {did or f'fails: {type(error).__name__}'}"
            raise Rejection("transform", "template", f"{message}: {first_line(error)}") from None
        return _without_marks(made)


def _marked(
    messages: Messages, tools: Tools, chosen: Collection[int]
) -> tuple[list[str], Messages, Tools]:
    """Return the names of all values, and the messages and tools with marks in those that are
    chosen by their places."""
    names: list[str] = []

    def one(name: str, value: Any) -> Any:
        place = len(names)
        made = _with_mark(value, f"{_MARK}{place}.")
        if made == value:  # nothing is said
            return value
        names.append(name)
        return made if place in chosen else value

    def each(name: str, value: Any) -> Any:
        return [one(name, part) for part in value] if isinstance(value, list) else one(name, value)

    made = [
        {
            key: value
            if key in _KNOWN
            else each(f"content of {message['role']}" if key == "content" else key, value)
            for key, value in message.items()
        }
        for message in messages
    ]
    return names, made, each("tools", tools)


def _with_mark(value: Any, mark: str) -> Any:
    """Return a value with a mark after the first word or tag of each text in it, and None for each
    number."""
    if isinstance(value, str):
        return _FIRST.sub(lambda found: found[0] + mark, value, count=1)
    if isinstance(value, dict):
        return {
            key: part if key in _KNOWN else _with_mark(part, mark) for key, part in value.items()
        }
    return [_with_mark(part, mark) for part in value] if isinstance(value, list) else None


def _as_given(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as transformers gives it to a template: its reasoning has the names that
    templates know too."""
    given = dict(message)
    for reasoning in (given[name] for name in _REASONING if given.get(name) is not None):
        given = {"thinking": reasoning, **given, "reasoning_content": reasoning}
        break
    if isinstance(given.get("content"), list):
        given["content"] = _Parts(given["content"])
    return given


class _Parts(list[Any]):
    """A content in parts. A template that would write it as Python does is refused."""

    def _refuse(self, *_: Any) -> str:
        from jinja2 import TemplateError

        raise TemplateError("it takes no content in parts; join their texts")

    __str__ = __repr__ = __add__ = __radd__ = _refuse  # type: ignore[assignment]


def _formatted(day: date | None, form: str) -> str:
    from jinja2 import TemplateError

    if day is None:
        raise TemplateError("it writes the day of today; the setting date gives one")
    return day.strftime(form)


def _outside(spans: Iterable[tuple[int, int]], begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield what is left of spans without what is between two places."""
    for first, last in spans:
        for piece in ((first, min(last, begin)), (max(first, end), last)):
            if piece[0] < piece[1]:
                yield piece


def _without_marks(made: str) -> Written:
    text, spans, start = "", [], 0
    for part in re.split(f"([{_BEGIN}{_END}])", made):
        if part == _BEGIN:
            start = len(text)
        elif part != _END:
            text += part
        elif start < len(text):
            spans.append((start, len(text)))
    return Written(text, tuple(spans))


@lru_cache(maxsize=1)
def _compiler() -> Callable[[str], Any]:
    """Return what compiles templates as transformers does, but that a missing value is an error
    where it would be written, and that nothing is random."""
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

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=Missing,
        extensions=[Generation, loopcontrols],
    )
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    # the same chats must give the same bytes
    del environment.filters["random"], environment.globals["lipsum"]
    environment.globals["raise_exception"] = refuse
    compiled: Callable[[str], Any] = environment.from_string
    return compiled


def _compiled(source: str, where: str) -> Any:
    jinja2 = needed("jinja2", "text", "a chat template")
    try:
        return _compiler()(source)
    except jinja2.TemplateSyntaxError as error:
        raise InputError(
            f"{where}: line {error.lineno} of the chat template: {first_line(error)}"
        ) from None
    except Exception as error:  # noqa: BLE001 - SyntaxError, RecursionError, MemoryError: Jinja compiles it to Python
        raise InputError(
            f"{where}: the chat template cannot be compiled: {type(error).__name__}: "
            f"{first_line(error)}"
        ) from None


def text_in(value: Any) -> str:
    """Return all strings of messages, names of values too, with NUL between them."""
    found, parts = [], [value]
    while parts:
        part = parts.pop()
        if isinstance(part, str):
            found.append(part)
        elif isinstance(part, dict):
            parts += [*part, *part.values()]
        elif isinstance(part, list):
            parts += part
    return "\0".join(found)
