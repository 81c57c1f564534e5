"""The forms of chats in records: one table, by which each becomes the messages and the tools that a
chat template gets."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from shardctl.errors import Rejection

MESSAGES, SYSTEM, TOOLS = "messages", "system", "tools"
ANSWER = "assistant"

MEDIA = frozenset(
    (
        "image",
        "__image__",
        "images",
        "image_url",
        "image_path",
        "video",
        "videos",
        "audio",
        "audios",
    )
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
