"""Chats: the messages in a record, of whatever form it has, and the one text that a template of Jinja
makes of them, which says which parts of it the loss counts.

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
from typing import Any, NamedTuple

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


# --- the forms of chats in records: one table, by which each becomes messages and tools ---

MESSAGES, SYSTEM, TOOLS = "messages", "system", "tools"
ANSWER = "assistant"

MEDIA = frozenset(
    "image,__image__,images,image_url,image_path,video,videos,audio,audios".split(",")
)
"""Fields of a record, a message or a part that name what tokens of text do not have. The step gets
image as __image__."""

Values = Mapping[str, Any]
"""The fields of a record, None for those that it does not have."""


class Form(NamedTuple):
    """Records that have all fields of `needs` are chats, and those of `more`, system and tools
    belong to them. `said` gives the messages."""

    needs: tuple[str, ...]
    more: tuple[str, ...]
    said: Callable[[Values], Any]

    def among(self, names: Collection[str]) -> tuple[str, ...]:
        """Return which of these fields hold the chat."""
        return tuple(name for name in (*self.needs, *self.more, SYSTEM, TOOLS) if name in names)


def _message(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def pair(user: str, assistant: str) -> Form:
    """Return the form of a question and an answer in two fields."""
    return Form(
        (user, assistant),
        (),
        lambda record: [_message("user", record[user]), _message(ANSWER, record[assistant])],
    )


def _alpaca(record: Values) -> list[Any]:
    before = _parsed(record.get("history")) or []
    turns = []
    for turn in before if isinstance(before, list) else (None,):
        if not isinstance(turn, list) or len(turn) != 2:
            raise Rejection("transform", MESSAGES, "the history is not a list of pairs")
        turns += [_message("user", turn[0]), _message(ANSWER, turn[1])]
    given = (record["instruction"], record.get("input"))
    parts = [part for part in given if part not in (None, "")]
    asked = "\n".join(parts) if all(isinstance(part, str) for part in parts) else None
    return [*turns, _message("user", asked), _message(ANSWER, record["output"])]


def _completion(record: Values) -> list[Any]:
    """The loss counts the completion alone."""
    asked, answered = record["prompt"], record["completion"]
    asked = asked if isinstance(asked, list) else [_message("user", asked)]
    asked = [
        {**turn, "weight": 0} if isinstance(turn, dict) and turn.get("role") == ANSWER else turn
        for turn in asked
    ]
    return [*asked, *(answered if isinstance(answered, list) else [_message(ANSWER, answered)])]


FORMS = (
    Form((MESSAGES,), (), lambda record: _parsed(record[MESSAGES])),
    Form(("conversations",), (), lambda record: _parsed(record["conversations"])),
    Form(("instruction", "output"), ("input", "history"), _alpaca),
    Form(("prompt", "completion"), (), _completion),
)
"""OpenAI, ShareGPT, Alpaca, and TRL's prompt and completion. The first that fits is taken."""

JSON_FIELDS = frozenset((SYSTEM, TOOLS)).union(*(form.needs + form.more for form in FORMS))
"""Of these a chat gets the JSON that the record has. Others, which a person names as question and
answer, are texts."""


def form_of(names: Collection[str]) -> Form | None:
    """Return the form of records with these fields; None: they are no chats."""
    return next((form for form in FORMS if set(form.needs) <= set(names)), None)


def which_chats() -> str:
    """Say which records are chats."""
    known = ", ".join(" and ".join(form.needs) for form in FORMS)
    return f"chats have {known}, or those that user and assistant name"


def chat_of(form: Form, record: Values) -> tuple[list[dict[str, Any]], list[Any] | None]:
    """Return the messages and the tools of a record, as a chat template gets them. Raises
    Rejection."""
    _refuse_media("the record", record)
    said = form.said(record)
    if not isinstance(said, list) or not said:
        why = "the messages are not a list" if said else "there are no messages"
        raise Rejection("transform", MESSAGES, why)
    if record.get(SYSTEM):
        roles = [(each.get("role"), each.get("from")) for each in said if isinstance(each, dict)]
        if any(SYSTEM in each for each in roles):
            why = "the record has the field system and a message of system; keep one of them"
            raise Rejection("transform", "role", why)
        said = [_message(SYSTEM, record[SYSTEM]), *said]
    tools = None if record.get(TOOLS) == "" else _parsed(record.get(TOOLS))
    if tools is not None and not (
        isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)
    ):
        raise Rejection("transform", TOOLS, "the tools are not a list of objects")
    numbered = enumerate(said, 1)
    return [_checked(each, f"message {number} of {len(said)}") for number, each in numbered], tools


def _parsed(value: Any) -> Any:
    """Return a value that may be JSON text in the record, as tables have it; other text as it
    is."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


_ROLES = {
    "human": "user",
    "gpt": ANSWER,
    "observation": "tool",
    **{role: role for role in (SYSTEM, "user", ANSWER, "tool")},
}
"""The roles of ShareGPT."""


def _checked(message: Any, which: str) -> dict[str, Any]:
    """Return a message as a template gets it: without the keys whose value is null, as transformers
    does. Raises Rejection."""
    if isinstance(message, dict) and "from" in message and "role" not in message:
        role = _ROLES.get(str(message["from"]))
        if role is None:
            why = f"{which} is from {message['from']!r}, and only {', '.join(_ROLES)} are known"
            raise Rejection("transform", "role", why)
        named = {"from": "role", "value": "content"}
        message = {
            named.get(key, key): role if key == "from" else value for key, value in message.items()
        }
    items = message.items() if isinstance(message, dict) else ()
    given = {key: value for key, value in items if value is not None}
    if not isinstance(given.get("role"), str) or not given["role"]:
        raise Rejection("transform", "role", f"{which} has no role that is text")
    content = given.get("content")
    in_parts = isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in content
    )
    if not (isinstance(content, str) or in_parts or (content is None and given.get("tool_calls"))):
        raise Rejection("transform", "content", f"{which} has no content that is text")
    if given.get("weight", 1) not in (0, 1):
        raise Rejection("transform", "weight", f"the weight of {which} is neither 0 nor 1")
    _refuse_media(which, given)
    for part in content if isinstance(content, list) else ():
        _refuse_media(which, {str(part.get("type")): True, **part})
    return given


def _refuse_media(which: str, given: Values) -> None:
    for name in sorted(MEDIA.intersection(given)):
        if given[name] not in (None, "", "[]", [], {}, False):
            why = f"{which} has {name.strip('_')}, and tokens of text have no place for it"
            raise Rejection("transform", "media", why)
