"""Chats as trainers write them: their forms, tools and weights, the loss that counts, and the same
tokens as transformers'."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from in_this_process import convert

import shardctl
from shardctl.errors import InputError, Rejection, ShardctlError, UsageError
from shardctl.format.tables import read_rejects
from shardctl.system.folders import LocalFolder
from shardctl.transforms.tokenizers.templates import Template

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

SPECIAL = ["<s>", "<|im_start|>", "<|im_end|>", "<|eot|>", "<|call|>"]

IM = """\
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools' }}
    {%- for tool in tools %}{{- '\\n' }}{{ tool | tojson }}{% endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
    {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
    {{- '\\n<r>' + m.content + '</r>' }}
    {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{% endif %}
{%- else %}
    {{- '<|im_start|>' + m.role + '\\n' }}
    {%- if m.content is string %}{{- m.content }}
    {%- elif m.content %}{% for part in m.content %}{{- part.text }}{% endfor %}{% endif %}
    {%- for call in m.tool_calls or [] %}
        {{- '\\n{"name": "' + call.function.name + '", "arguments": ' }}
        {%- if call.function.arguments is string %}{{- call.function.arguments }}
        {%- else %}{{- call.function.arguments | tojson }}{% endif %}
        {{- '}' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
HEADERS = (
    "{{ bos_token }}{% if tools is not none %}[tools]{{ tools | tojson(indent=2) }}<|eot|>{% endif "
    "%}"
    "{% for m in messages %}{{ '[' + m['role'] + ']\n\n' }}"
    "{% if 'tool_calls' in m %}"
    "{{ m['tool_calls'][0]['function'] | tojson(sort_keys=true, separators=(',', ':')) + "
    "'<|call|>' }}"
    "{% else %}{{ m['content'] | trim + '<|eot|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]\n\n' }}{% endif %}"
)
TURNS = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no "
    "system') }}{% endif %}"
    "<{{ 'model' if m.role == 'assistant' else m.role }}>\n"
    "{% if m.content is string %}{{ m.content | trim }}"
    "{% else %}{% for p in m.content %}{{ p.text | trim }}{% endfor %}{% endif %}"
    "<|eot|>\n{% endfor %}{% if add_generation_prompt %}<model>\n{% endif %}"
)
CHANNELS = (
    "[date {{ strftime_now('%Y-%m-%d') }}]{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% if m.thinking %}<|im_start|>analysis {{ m.thinking }}<|im_end|>{% endif %}"
    "<|im_start|>final {{ m.content }}<|eot|>"
    "{% else %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>{% endif %}"
)
MARKED = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}[{{ m.content }}{% for c "
    "in m.tool_calls or [] %}"
    "{{ c.function.arguments | tojson }}{% endfor %}<|eot|>{% endgeneration %}"
    "{% else %}({{ m.content }}){% endif %}{% endfor %}"
)


def say(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


CALL = {
    "id": "1",
    "type": "function",
    "function": {"name": "f", "arguments": {"z": 2, "a": 1.0, "e": {}, "n": None, "l": [1, None]}},
}
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {"type": "object", "properties": {"z": {"type": "integer"}}},
    },
}
TURNS_OF_TOOLS = [
    say("user", "hi"),
    say("assistant", "", tool_calls=[CALL]),
    say("tool", "4"),
    say("assistant", "it is 4"),
]
PLAIN = [
    say("user", "hi"),
    say("assistant", "yes"),
    say("user", " what? "),
    say("assistant", "that"),
]


def model(folder: Path, template: str | None = None) -> Path:
    """Write the folder of a tokenizer with a token for each byte, and some that are special."""
    symbols = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE({symbol: place for place, symbol in enumerate(symbols)}, [])
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(SPECIAL)
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    config = {
        "bos_token": "<s>",
        "eos_token": "<|im_end|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config | ({"chat_template": template} if template else {}))
    )
    return folder


def lines(path: Path, records: Sequence[Any]) -> Path:
    path.write_text(
        "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records),
        encoding="utf-8",
    )
    return path


def converted(source: Path, out: Path, tokenizer: Path, **settings: Any) -> Any:
    recipe = {"transform": [{"name": "tokenize_chat", "tokenizer": str(tokenizer), **settings}]}
    return convert(source, out, recipe=recipe)


def chatml(source: Path, folder: Path) -> Any:
    """Convert to folder/out what can be converted with the template chatml."""
    step = {"name": "tokenize_chat", "tokenizer": str(model(folder / "m")), "template": "chatml"}
    recipe = {"transform": [step]}
    return convert(source, folder / "out", recipe, max_rejects="100%")


def texts(out: Path) -> list[tuple[str, str]]:
    """Return the text of each sample, and that of the tokens which the loss counts."""
    ds = shardctl.open(out)
    pairs = [(np.asarray(sample["tokens"]), np.asarray(sample["loss_mask"])) for sample in ds]
    return [
        (ds.tokenizer.decode(tokens), ds.tokenizer.decode(tokens[mask == 1]))
        for tokens, mask in pairs
    ]


FORMS: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "openai": ({"messages": PLAIN}, PLAIN),
    "sharegpt": (
        {
            "id": 1,
            "system": "be",
            "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}],
        },
        [say("system", "be"), say("user", "a"), say("assistant", "b")],
    ),
    "sharegpt with roles": ({"conversations": PLAIN}, PLAIN),
    "alpaca": (
        {"instruction": "add", "input": "1", "output": "2"},
        [say("user", "add\n1"), say("assistant", "2")],
    ),
    "alpaca without input": (
        {"instruction": "add", "input": "", "output": "2", "history": [["q", "a"]]},
        [say("user", "q"), say("assistant", "a"), say("user", "add"), say("assistant", "2")],
    ),
    "completion": (
        {"prompt": "[1]", "completion": "b"},
        [say("user", "[1]"), say("assistant", "b")],
    ),
    "completion of messages": ({"prompt": PLAIN[:1], "completion": PLAIN[1:2]}, PLAIN[:2]),
    "list": (PLAIN, PLAIN),
    "parts": ({"messages": [say("user", [{"type": "text", "text": "hi"}]), PLAIN[1]]}, PLAIN[:2]),
    "text": ({"messages": json.dumps(PLAIN), "tools": ""}, PLAIN),
}


def _as_lines(path: Path, records: list[Any]) -> Path:
    return lines(path / "in.jsonl", records)


def _as_array(path: Path, records: list[Any]) -> Path:
    (path / "in.json").write_text(json.dumps(records))
    return path / "in.json"


def _as_gzip(path: Path, records: list[Any]) -> Path:
    (path / "in.jsonl.gz").write_bytes(
        gzip.compress("".join(json.dumps(each) + "\n" for each in records).encode())
    )
    return path / "in.jsonl.gz"


@pytest.mark.thorough(after=10)
@pytest.mark.parametrize("write", [_as_lines, _as_array, _as_gzip])
@pytest.mark.parametrize("form", list(FORMS))
def test_every_form_of_a_chat_gives_the_tokens_of_its_messages(tmp_path, out, form, write):
    record, messages = FORMS[form]
    converted(
        write(tmp_path, [record, record]),
        out,
        model(tmp_path / "m"),
        template="chatml",
    )
    text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    counted = "".join(f"{m['content']}<|im_end|>" for m in messages if m["role"] == "assistant")
    assert texts(out) == [(text, counted)] * 2


def test_records_that_are_no_chats_are_refused(tmp_path):
    source = lines(tmp_path / "in.jsonl", [{"prompt": "a", "chosen": "b", "rejected": "c"}])
    with pytest.raises(InputError, match="chats have messages, "):
        converted(source, tmp_path / "out", model(tmp_path / "m"), template="chatml")


STYLES = {"im": IM, "headers": HEADERS, "turns": TURNS, "channels": CHANNELS, "marked": MARKED}
CHATS: dict[str, dict[str, Any]] = {
    "plain": {"messages": PLAIN},
    "tools": {"messages": TURNS_OF_TOOLS, "tools": [TOOL]},
    "null": {
        "messages": [
            TURNS_OF_TOOLS[0],
            {**TURNS_OF_TOOLS[1], "content": None},
            *TURNS_OF_TOOLS[2:],
        ],
        "tools": None,
    },
    "text": {
        "messages": [
            PLAIN[0],
            say(
                "assistant", None, tool_calls=[{"function": {"name": "g", "arguments": '{"a": 1}'}}]
            ),
        ]
    },
    "reasoning": {"messages": [PLAIN[0], say("assistant", "yes", reasoning_content="because")]},
    "parts": {
        "messages": [
            say("user", [{"type": "text", "text": " a "}, {"type": "text", "text": "b"}]),
            PLAIN[1],
        ]
    },
}
TAKEN = {
    "im": {"plain", "tools", "null", "text", "reasoning", "parts"},
    "headers": {"plain", "tools", "null", "text", "reasoning"},
    "turns": {"plain", "reasoning", "parts"},
    "channels": {"plain", "reasoning"},
    "marked": {"plain", "tools", "reasoning"},
}
"""Which chats a template takes: the others it refuses, or does not write."""


@pytest.mark.skipif(
    os.environ.get("SHARDCTL_FRAMEWORKS") != "yes",
    reason="needs transformers: SHARDCTL_FRAMEWORKS=yes",
)
@pytest.mark.parametrize("style", list(STYLES))
def test_tokens_are_those_of_apply_chat_template(tmp_path, style):
    transformers = pytest.importorskip("transformers")
    folder = model(tmp_path / "m", STYLES[style])
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    day = f"{datetime.now():%Y-%m-%d}"
    for name in sorted(TAKEN[style]):
        chat = CHATS[name]
        converted(lines(tmp_path / f"{name}.jsonl", [chat]), tmp_path / name, folder, date=day)
        (sample,) = shardctl.open(tmp_path / name)
        found = theirs.apply_chat_template(
            chat["messages"],
            tools=chat.get("tools"),
            return_dict=True,
            return_assistant_tokens_mask=style == "marked",
        )
        assert list(sample["tokens"]) == found["input_ids"], name
        if style == "marked":
            assert list(sample["loss_mask"]) == found["assistant_masks"], name


@pytest.mark.parametrize("style", list(STYLES))
def test_a_template_that_cannot_take_a_chat_refuses_it(style):
    special = {"bos_token": "<s>"}
    for name in CHATS.keys() - TAKEN[style]:
        chat = CHATS[name]
        try:
            written = Template(STYLES[style], special, "x").write(
                _without_null(chat["messages"]), chat.get("tools")
            )
        except Rejection:
            continue
        assert "tool_calls" in written.unwritten, name


def _without_null(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in message.items() if value is not None} for message in messages
    ]


def test_without_tags_the_loss_counts_what_each_answer_adds(tmp_path, out):
    source = lines(tmp_path / "in.jsonl", [CHATS["tools"], CHATS["plain"]])
    converted(source, out, model(tmp_path / "m", IM))
    call = (
        '\n{"name": "f", "arguments": {"z": 2, "a": 1.0, "e": {}, "n": null, "l": [1, '
        "null]}}<|im_end|>\n"
    )
    found = texts(out)
    assert [counted for _, counted in found] == [
        f"{call}it is 4<|im_end|>\n",
        "yes<|im_end|>\nthat<|im_end|>\n",
    ]
    tools = f"<|im_start|>system\n# Tools\n{json.dumps(TOOL)}<|im_end|>\n"
    assert found[0][0].startswith(
        f"{tools}<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n{call}<|im_start|>user\n<r>4</r>"
    )


@pytest.mark.parametrize("style", ["im", "marked"])
def test_an_answer_of_weight_0_does_not_count(tmp_path, out, style):
    chat = [PLAIN[0], {**PLAIN[1], "weight": 0}, PLAIN[2], {**PLAIN[3], "weight": 1}]
    source = lines(tmp_path / "in.jsonl", [{"messages": chat}, {"messages": PLAIN}])
    converted(source, out, model(tmp_path / "m", STYLES[style]))
    (text, counted), (same, _) = texts(out)
    assert text == same
    assert counted == {"im": "that<|im_end|>\n", "marked": "[that<|eot|>"}[style]


def test_answers_in_a_prompt_do_not_count(tmp_path, out):
    source = lines(tmp_path / "in.jsonl", [{"prompt": PLAIN[:3], "completion": PLAIN[3:]}])
    converted(source, out, model(tmp_path / "m"), template="chatml")
    assert [counted for _, counted in texts(out)] == ["that<|im_end|>"]


def test_what_cannot_be_trained_on_is_rejected_with_the_reason(tmp_path):
    user = PLAIN[0]
    chats: list[tuple[Any, str]] = [
        ({"messages": [user, say("assistant", "a", weight=0.5)]}, "weight"),
        ({"messages": [user, say("assistant", "a", weight=0)]}, "no-answer"),
        ({"messages": [user, say("assistant", "", tool_calls=[CALL])]}, "tool-calls"),
        ({"messages": [user, say("assistant", None)]}, "content"),
        ({"messages": [say("user", [{"type": "image"}]), PLAIN[1]]}, "content"),
        ({"messages": [user, {"from": "function_call", "value": "{}"}]}, "role"),
        ({"messages": [user, PLAIN[1]], "tools": ["f"]}, "tools"),
    ]
    source = lines(tmp_path / "in.jsonl", [{"messages": PLAIN}, *(chat for chat, _ in chats)])
    chatml(source, tmp_path)
    assert [reject.error for reject in read_rejects(LocalFolder(tmp_path / "out"))] == [
        error for _, error in chats
    ]


def test_whether_a_value_is_text_does_not_depend_on_other_records(tmp_path):
    chats = [{"instruction": "a", "input": part, "output": "b"} for part in ("c", 3, None, "")]
    source = lines(tmp_path / "in.jsonl", chats)
    chatml(source, tmp_path)
    assert [
        (reject.key, reject.error) for reject in read_rejects(LocalFolder(tmp_path / "out"))
    ] == [("in.jsonl#2", "content")]


def test_a_text_that_what_follows_changes_is_refused():
    """As that of templates that leave out what was thought before the last question."""
    template = Template(
        "{% for m in messages %}<{{ m.content if loop.last else m.content | upper }}>{% endfor %}",
        {},
        "x",
    )
    assert template.write(PLAIN[1:2]).spans == ((0, 5),)
    with pytest.raises(Rejection) as caught:
        template.write(PLAIN)
    assert caught.value.error == "unstable"


CALLING = say("assistant", "let me see", tool_calls=[CALL])
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role != 'system' %}<{{ m.role }}>{{ m.content | trim "
    "}}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "messages", "names"),
    [
        (HEADERS, [PLAIN[0], CALLING, *TURNS_OF_TOOLS[2:]], {"content of assistant"}),
        (
            HEADERS,
            [PLAIN[0], {**CALLING, "content": "", "tool_calls": [CALL, CALL]}],
            {"tool_calls"},
        ),
        (NO_SYSTEM, [say("system", "user"), say("user", "user"), PLAIN[1]], {"content of system"}),
        (NO_SYSTEM, [say("user", " a\n"), PLAIN[1]], set()),
        (NO_SYSTEM, [say("system", " \n"), *PLAIN], set()),
        (
            IM,
            [
                say("user", [{"text": "x"}, {"text": "3"}]),
                say("assistant", [{"text": "a"}], reasoning="lost", kept=True),
            ],
            {"reasoning", "kept"},
        ),
        (IM, [PLAIN[0], CALLING, say("tool", "4", tool_call_id="1"), *PLAIN[:2]], {"tool_call_id"}),
        (CHANNELS, [PLAIN[0], say("assistant", "yes", thinking="hm", train=False)], {"train"}),
        (
            "{% for m in messages %}{% if m.content not in ('a', 'b') %}{{ raise_exception('no') "
            "}}{% endif %}"
            "{% if m.role == 'user' %}{{ m.content }}{% else %}-{% endif %}{% endfor %}",
            [say("user", "a"), say("assistant", "b")],
            set(),
        ),
        (
            "{% for m in messages %}{{ m.content.split('</think>') | last if loop.first else "
            "m.content | tojson }}{% endfor %}",
            [say("user", "<think>a</think>b"), say("assistant", 'c"')],
            {"content of user"},
        ),
        (
            "{% for m in messages %}<think>{{ (m.content.split('</think>') | "
            "first).split('<think>') | last }}</think>"
            "{{ m.content.split('</think>') | last }}{% endfor %}",
            [say("user", "<think>\na</think>b"), say("assistant", "<think>c</think>d")],
            set(),
        ),
    ],
)
def test_each_value_that_can_be_another_one_in_the_same_text_is_named(template, messages, names):
    written = Template(template, {"bos_token": "<s>"}, "x", date(2026, 1, 31)).write(messages)
    assert set(written.unwritten) == names


@pytest.mark.parametrize(
    ("record", "settings"),
    [
        ({"messages": PLAIN[:2]}, {}),
        ({"conversations": PLAIN[:2]}, {}),
        ({"instruction": "hi", "output": "yes"}, {}),
        ({"prompt": "hi", "completion": "yes"}, {}),
        ({"q": "hi", "a": "yes"}, {"user": "q", "assistant": "a"}),
    ],
)
def test_system_and_tools_reach_the_template_in_every_form(tmp_path, record, settings):
    chats = [{**record, "system": "be", "tools": [TOOL]}, {**record, "system": None, "tools": None}]
    converted(
        lines(tmp_path / "in.jsonl", chats), tmp_path / "out", model(tmp_path / "m", IM), **settings
    )
    tools, system = (
        f"<|im_start|>system\n{text}<|im_end|>\n" for text in (f"# Tools\n{json.dumps(TOOL)}", "be")
    )
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
    assert [found for found, _ in texts(tmp_path / "out")] == [tools + system + text, text]
    assert shardctl.open(tmp_path / "out").schema.names == ["key", "tokens", "loss_mask"]


def test_media_are_told_by_the_fields_of_a_record_and_not_by_its_texts(tmp_path):
    html = {
        "messages": [
            say("user", "<img src=a> <image> <video>"),
            say("assistant", "[IMG] <|image_1|>"),
        ]
    }
    none: list[dict[str, Any]] = [{"images": []}, {"image": None}, {"image": ""}]
    lost: list[dict[str, Any]] = [{"images": ["a.jpg"]}, {"image": "a.jpg"}, {"audios": ["a.wav"]}]
    source = lines(
        tmp_path / "in.jsonl",
        [{**html, **more} for more in [*none, *lost]] + [{**html, "system": html["messages"]}],
    )
    made = chatml(source, tmp_path)
    assert [reject.error for reject in read_rejects(LocalFolder(tmp_path / "out"))] == [
        "media"
    ] * 3 + ["content"]
    assert made.samples == 3


def test_two_system_prompts_are_rejected(tmp_path):
    chats = [{"messages": PLAIN}, {"messages": [say("system", "a"), *PLAIN], "system": "b"}]
    source = lines(tmp_path / "in.jsonl", chats)
    chatml(source, tmp_path)
    (reject,) = read_rejects(LocalFolder(tmp_path / "out"))
    assert "keep one of them" in reject.message


def test_what_a_template_does_not_write_is_named_with_a_count(tmp_path, cli):
    records = [
        {"messages": [PLAIN[0], {**PLAIN[1], "reasoning_content": "x"}], "tools": [TOOL]}
    ] * 3 + [{"messages": PLAIN}] * 2
    source = lines(tmp_path / "in.jsonl", records)
    folder = model(tmp_path / "m")
    ran = cli(
        "convert",
        source,
        tmp_path / "out",
        "--tokenizer",
        folder,
        "--chat-template",
        "chatml",
        "--workers",
        0,
    )
    assert (
        "the chat template does not write reasoning_content (3 chats), tools (3 chats)"
        in ran.out + ran.err
    )


# --- the JSON that a record has ---


def test_an_update_changes_no_old_chat(tmp_path, out):
    """Whatever the new one has: other types, other names, another order."""
    folder, source = model(tmp_path / "m", IM), tmp_path / "in"
    source.mkdir()
    lines(source / "a.jsonl", [CHATS["tools"]] * 3)
    converted(source, out, folder)
    before = texts(out)
    arguments = {"n": "text", "a": "b", "l": {"x": 1}, "z": 2.5, "new": 1}
    other = [
        PLAIN[0],
        say(
            "assistant",
            "",
            tool_calls=[{"function": {"arguments": arguments, "name": "f"}, "id": 7}],
        ),
    ]
    lines(source / "b.jsonl", [{"messages": other, "tools": [{"type": 1}]}])
    recipe = {"transform": [{"name": "tokenize_chat", "tokenizer": str(folder)}]}
    made = convert(source, out, recipe=recipe, update=True)
    assert made.changes is not None
    assert not made.changes.anew
    assert texts(out)[:3] == before
    assert json.dumps(arguments) in texts(out)[3][1]


def test_chats_of_parquet_lack_what_is_null_in_other_records(tmp_path):
    """Arrow has the names of all records in each: their tokens are those of the JSON, but for
    values that are null there."""
    folder = model(tmp_path / "m", IM)
    tool = {"type": "function", "function": {"name": "g", "strict": True}}
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "f", "arguments": {"z": 2, "a": 1.0, "n": None, "l": [1, None]}},
    }
    records = [
        {"messages": PLAIN, "tools": [tool]},
        {"messages": [*PLAIN[:1], say("assistant", None, tool_calls=[call])], "tools": [TOOL]},
    ]
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "in.parquet")
    del call["function"]["arguments"]["n"]  # type: ignore[attr-defined]
    for path in (tmp_path / "in.parquet", lines(tmp_path / "in.jsonl", records)):
        converted(path, tmp_path / path.suffix[1:], folder)
    assert texts(tmp_path / "parquet") == texts(tmp_path / "jsonl")


def test_chats_in_a_csv_are_json_text(tmp_path, out):
    folder = model(tmp_path / "m", IM)
    cell = json.dumps(PLAIN[:2]).replace('"', '""')
    (tmp_path / "in.csv").write_text(f'id,messages\n1,"{cell}"\n')
    converted(tmp_path / "in.csv", out, folder)
    assert [counted for _, counted in texts(out)] == ["yes<|im_end|>\n"]


def test_other_fields_keep_their_types_and_kept_messages_are_json(tmp_path, out):
    folder = model(tmp_path / "m")
    source = lines(
        tmp_path / "in.jsonl", [{"messages": PLAIN, "prompt": "a", "input": 3, "n": 1.5}]
    )
    converted(source, out, folder, template="chatml", keep_messages=True)
    (sample,) = shardctl.open(out)
    assert (sample["prompt"], sample["input"], sample["n"]) == ("a", 3, 1.5)
    assert json.loads(sample["messages"]) == PLAIN


def test_a_template_that_writes_the_day_gets_it_from_the_step(tmp_path, out):
    folder, source = model(tmp_path / "m", CHANNELS), lines(tmp_path / "in.jsonl", [CHATS["plain"]])
    with pytest.raises(ShardctlError, match="the setting date gives one"):
        converted(source, tmp_path / "none", folder)
    converted(source, out, folder, date="2026-01-31")
    assert texts(out)[0][0].startswith("[date 2026-01-31]")
    with pytest.raises(UsageError, match="must be a day such as 2026-01-31"):
        converted(source, tmp_path / "wrong", folder, date="31.1.2026")
