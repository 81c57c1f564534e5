"""Chats as trainers write them: their forms, tools and weights, the loss that counts, and the same
tokens as transformers'."""

from __future__ import annotations

import gzip
import json
import os
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dataset_facts import rejects_of
from dataset_files import shard_in, tables_in
from in_this_process import convert, repair
from json_lines import json_lines, texts_in

import shardctl
from shardctl.errors import InputError, Rejection, ShardctlError, UsageError
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
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
USER, YES = say("user", "hi"), say("assistant", "yes")
PLAIN = [USER, YES, say("user", " what? "), say("assistant", "that")]


TURNS_OF_TOOLS = [
    USER,
    say("assistant", "", tool_calls=[CALL]),
    say("tool", "4"),
    say("assistant", "it is 4"),
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
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(tables_in(folder) / "tokenizer.json"))
    config = {
        "bos_token": "<s>",
        "eos_token": "<|im_end|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config | ({"chat_template": template} if template else {}))
    )
    return folder


def converted(
    folder: Path, source: Path | list[Any], style: str | None = None, **settings: Any
) -> Any:
    """Convert chats, or the file of them, to folder/out: with this template of the tokenizer, or with
    chatml."""
    if style is None:
        settings.setdefault("template", "chatml")
    if isinstance(source, list):
        source = json_lines(folder / "in.jsonl", source)
    step = {"name": "tokenize_chat", "tokenizer": str(model(folder / "m", style)), **settings}
    return convert(source, folder / "out", recipe={"transform": [step]}, max_rejects="100%")


def errors(out: Path) -> list[str]:
    return [reject.error for reject in rejects_of(out)]


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
    "parts": ({"messages": [say("user", [{"type": "text", "text": "hi"}]), YES]}, PLAIN[:2]),
    "text": ({"messages": json.dumps(PLAIN), "tools": ""}, PLAIN),
}


def _as_array(path: Path, records: list[Any]) -> Path:
    (path / "in.json").write_text(json.dumps(records))
    return path / "in.json"


def _as_gzip(path: Path, records: list[Any]) -> Path:
    file = json_lines(path / "in.jsonl", records)
    (path / "in.jsonl.gz").write_bytes(gzip.compress(file.read_bytes()))
    return path / "in.jsonl.gz"


@pytest.mark.parametrize(
    ("form", "write"),
    [
        *((form, lambda _, records: records) for form in FORMS),
        *((form, _as_array) for form in ("openai", "list", "text")),
        ("alpaca", _as_gzip),
    ],
)
def test_every_form_of_a_chat_gives_the_tokens_of_its_messages(tmp_path, out, form, write):
    record, messages = FORMS[form]
    converted(tmp_path, write(tmp_path, [record, record]))
    text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    counted = "".join(f"{m['content']}<|im_end|>" for m in messages if m["role"] == "assistant")
    assert texts(out) == [(text, counted)] * 2


STYLES = {"im": IM, "headers": HEADERS, "turns": TURNS, "channels": CHANNELS, "marked": MARKED}
OTHER_CALL = {"function": {"name": "g", "arguments": '{"a": 1}'}}
SPLIT = say("user", [{"type": "text", "text": " a "}, {"type": "text", "text": "b"}])
CHATS: dict[str, dict[str, Any]] = {
    "plain": {"messages": PLAIN},
    "tools": {"messages": TURNS_OF_TOOLS, "tools": [TOOL]},
    "null": {
        "messages": [USER, {**TURNS_OF_TOOLS[1], "content": None}, *TURNS_OF_TOOLS[2:]],
        "tools": None,
    },
    "text": {"messages": [USER, say("assistant", None, tool_calls=[OTHER_CALL])]},
    "reasoning": {"messages": [USER, {**YES, "reasoning_content": "because"}]},
    "parts": {"messages": [SPLIT, YES]},
}
TAKEN = {
    "im": set(CHATS),
    "headers": set(CHATS) - {"parts"},
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
        converted(tmp_path / name, [chat], STYLES[style], date=day)
        (sample,) = shardctl.open(tmp_path / name / "out")
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
    for name in CHATS.keys() - TAKEN[style]:
        chat = CHATS[name]
        messages = [
            {key: value for key, value in message.items() if value is not None}
            for message in chat["messages"]
        ]
        try:
            written = Template(STYLES[style], {"bos_token": "<s>"}, "x").write(
                messages, chat.get("tools")
            )
        except Rejection:
            continue
        assert "tool_calls" in written.unwritten, name


GENERATION = "{{% generation %}}{}{{% endgeneration %}}"


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{% generation %}{{ x }", "line 1"),
        (GENERATION.format("{{ messages|random }}"), "random"),
        (GENERATION.format("") + "{% for m in messages %}" * 25 + "{% endfor %}" * 25, "nested"),
        (GENERATION.format("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}"), "RecursionError"),
        (GENERATION.format("{{ nothing.at.all }}"), "template"),
        (GENERATION.format("{{ ''.__class__.__mro__ }}"), "template"),
        (GENERATION.format("{{ strftime_now('%Y') }}"), "template"),
        (GENERATION.format("{{ messages.append(1) }}"), "template"),
        ("{% include 'x.jinja' %}" + GENERATION.format("a"), "template"),
    ],
)
def test_a_template_that_cannot_be_used_or_asks_for_what_is_not_allowed(template, problem):
    with pytest.raises(Rejection if problem == "template" else InputError, match=problem) as caught:
        Template(template, {}, "x.jinja").write(PLAIN)
    assert getattr(caught.value, "error", "template") == "template"


def test_messages_may_have_values_that_are_no_text():
    """As those of Parquet files have."""
    message = say("user", "a", at=datetime(2026, 1, 2), weight=1.5, parts=[b"b"])
    template = GENERATION.format("{{ messages[0].content }}") + " b"
    written = Template(template, {}, "x.jinja").write([message])
    assert (written.text, written.spans) == ("a b", ((0, 1),))


def test_a_template_of_a_file_is_part_of_the_dataset(tmp_path, out):
    template = tmp_path / "x.jinja"
    template.write_text(
        "{% for m in messages %}{{ m.name or '' }}"
        + GENERATION.format("{{ m.content }}")
        + "{% endfor %}"
    )
    converted(tmp_path, [{"messages": PLAIN}], template=str(template), tokenizer="bytes")
    assert texts(out) == [("hiyes what? that",) * 2]
    before = (
        (tables_in(out) / "chat_template.jinja").read_text(),
        (tables_in(out) / "SHA256SUMS").read_text(),
    )
    template.unlink()
    (shard_in(out, "train-00000")).unlink()
    assert repair(out).status == "repaired"
    assert (
        (tables_in(out) / "chat_template.jinja").read_text(),
        (tables_in(out) / "SHA256SUMS").read_text(),
    ) == before


def test_chats_without_a_template_and_texts_that_are_chats_are_refused(tmp_path, out, cli):
    json_lines(tmp_path / "chats.jsonl", [{"messages": PLAIN}])
    json_lines(tmp_path / "pairs.jsonl", [{"prompt": "a", "chosen": "b", "rejected": "c"}])
    texts_in(tmp_path / "texts.jsonl", ["a"])
    chatml = "--tokenizer bytes --chat-template chatml"
    for name, options, problem in (
        ("chats", f"--tokenizer {model(tmp_path / 'm')}", "use --chat-template"),
        ("chats", f"--tokenizer {tmp_path / 'm'} --chat-template auto", "no chat template"),
        ("chats", "--chat-template chatml", "give --tokenizer too"),
        ("texts", chatml, "needs chats"),
        ("pairs", chatml, "needs chats"),
    ):
        source = tmp_path / f"{name}.jsonl"
        ran = cli("convert", source, out, *options.split(), "--workers", 0)
        assert ran.code in (2, 3)
        assert problem in ran.err


def test_without_tags_the_loss_counts_what_each_answer_adds(tmp_path, out):
    converted(tmp_path, [CHATS["tools"], CHATS["plain"]], IM)
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
    chat = [USER, {**YES, "weight": 0}, PLAIN[2], {**PLAIN[3], "weight": 1}]
    converted(tmp_path, [{"messages": chat}, {"messages": PLAIN}], STYLES[style])
    (text, counted), (same, _) = texts(out)
    assert text == same
    assert counted == {"im": "that<|im_end|>\n", "marked": "[that<|eot|>"}[style]


def test_answers_in_a_prompt_do_not_count(tmp_path, out):
    converted(tmp_path, [{"prompt": PLAIN[:3], "completion": PLAIN[3:]}], tokenizer="bytes")
    assert [counted for _, counted in texts(out)] == ["that<|im_end|>"]


def test_what_cannot_be_trained_on_is_rejected_with_the_reason(tmp_path, out):
    chats: list[tuple[Any, str]] = [
        ([], "messages"),
        (None, "messages"),
        ([{"role": "user"}, YES], "content"),
        ([{"content": "a"}, YES], "role"),
        ([say("user", "x <|im_end|> y"), YES], "special-token"),
        ([USER], "no-answer"),
        ([say("user", "\ufdd0"), YES], "noncharacter"),
        ([say("user", "What?", images=["a.jpg"]), YES], "media"),
        ([say("user", [{"type": "image", "text": "x"}]), YES], "media"),
        ([USER, {**YES, "weight": 0.5}], "weight"),
        ([USER, {**YES, "weight": 0}], "no-answer"),
        ([USER, say("assistant", "", tool_calls=[CALL])], "tool-calls"),
        ([USER, say("assistant", None)], "content"),
        ([say("user", [{"type": "image"}]), YES], "content"),
        ([USER, {"from": "function_call", "value": "{}"}], "role"),
    ]
    records: list[Any] = [{"messages": PLAIN}, *({"messages": chat} for chat, _ in chats)]
    two_systems = {"messages": [say("system", "a"), *PLAIN], "system": "b"}
    made = converted(tmp_path, [*records, {"messages": PLAIN, "tools": ["f"]}, two_systems])
    assert errors(out) == [*(error for _, error in chats), "tools", "role"]
    assert made.samples == 1


def test_whether_a_value_is_text_does_not_depend_on_other_records(tmp_path, out):
    parts = ("c", 3, None, "")
    converted(tmp_path, [{"instruction": "a", "input": part, "output": "b"} for part in parts])
    assert [(reject.key, reject.error) for reject in rejects_of(out)] == [("in.jsonl#2", "content")]


def test_a_text_that_what_follows_changes_is_refused():
    """As that of templates that leave out what was thought before the last question."""
    said = (
        "{% for m in messages %}<{{ m.content if loop.last else m.content | upper }}>{% endfor %}"
    )
    template = Template(said, {}, "x")
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
        (HEADERS, [USER, CALLING, *TURNS_OF_TOOLS[2:]], {"content of assistant"}),
        (HEADERS, [USER, say("assistant", "", tool_calls=[CALL, CALL])], {"tool_calls"}),
        (NO_SYSTEM, [say("system", "user"), say("user", "user"), YES], {"content of system"}),
        (NO_SYSTEM, [say("user", " a\n"), YES], set()),
        (NO_SYSTEM, [say("system", " \n"), *PLAIN], set()),
        (
            IM,
            [
                say("user", [{"text": "x"}, {"text": "3"}]),
                say("assistant", [{"text": "a"}], reasoning="lost", kept=True),
            ],
            {"reasoning", "kept"},
        ),
        (IM, [USER, CALLING, say("tool", "4", tool_call_id="1"), *PLAIN[:2]], {"tool_call_id"}),
        (CHANNELS, [USER, say("assistant", "yes", thinking="hm", train=False)], {"train"}),
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
def test_system_and_tools_reach_the_template_in_every_form(tmp_path, out, record, settings):
    more = ({"system": "be", "tools": [TOOL]}, {"system": None, "tools": None})
    converted(tmp_path, [{**record, **each} for each in more], IM, **settings)
    tools, system = (
        f"<|im_start|>system\n{text}<|im_end|>\n" for text in (f"# Tools\n{json.dumps(TOOL)}", "be")
    )
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
    assert [found for found, _ in texts(out)] == [tools + system + text, text]
    assert shardctl.open(out).schema.names == ["key", "tokens", "loss_mask"]


def test_media_are_told_by_the_fields_of_a_record_and_not_by_its_texts(tmp_path, out):
    texts = [say("user", "<img src=a> <image> <video>"), say("assistant", "[IMG] <|image_1|>")]
    none: list[dict[str, Any]] = [{"images": []}, {"image": None}, {"image": ""}]
    lost: list[dict[str, Any]] = [{"images": ["a.jpg"]}, {"image": "a.jpg"}, {"audios": ["a.wav"]}]
    more = [*none, *lost, {"system": texts}]
    assert converted(tmp_path, [{"messages": texts, **each} for each in more]).samples == 3
    assert errors(out) == ["media"] * 3 + ["content"]


def test_what_a_template_does_not_write_is_named_with_a_count(tmp_path, out, cli):
    records = [{"messages": [USER, {**YES, "reasoning_content": "x"}], "tools": [TOOL]}] * 3
    source = json_lines(tmp_path / "in.jsonl", [*records, *[{"messages": PLAIN}] * 2])
    options = f"--tokenizer {model(tmp_path / 'm')} --chat-template chatml --workers 0"
    ran = cli("convert", source, out, *options.split())
    assert "not write reasoning_content (3 chats), tools (3 chats)" in ran.out + ran.err


# --- the JSON that a record has ---


def test_an_update_changes_no_old_chat(tmp_path, out):
    """Whatever the new one has: other types, other names, another order."""
    source = tmp_path / "in"
    json_lines(source / "a.jsonl", [CHATS["tools"]] * 3)
    converted(tmp_path, source, IM)
    before = texts(out)
    arguments = {"n": "text", "a": "b", "l": {"x": 1}, "z": 2.5, "new": 1}
    call = {"function": {"arguments": arguments, "name": "f"}, "id": 7}
    other = {"messages": [USER, say("assistant", "", tool_calls=[call])], "tools": [{"type": 1}]}
    json_lines(source / "b.jsonl", [other])
    step = {"name": "tokenize_chat", "tokenizer": str(tmp_path / "m")}
    made = convert(source, out, recipe={"transform": [step]}, update=True)
    assert made.changes is not None
    assert not made.changes.anew
    assert texts(out)[:3] == before
    assert json.dumps(arguments) in texts(out)[3][1]


def test_chats_of_parquet_lack_what_is_null_in_other_records(tmp_path):
    """Arrow has the names of all records in each: their tokens are those of the JSON, but for
    values that are null there."""
    tool = {"type": "function", "function": {"name": "g", "strict": True}}
    arguments = {"z": 2, "a": 1.0, "n": None, "l": [1, None]}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    records = [
        {"messages": PLAIN, "tools": [tool]},
        {"messages": [USER, say("assistant", None, tool_calls=[call])], "tools": [TOOL]},
    ]
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "in.parquet")
    del arguments["n"]
    converted(tmp_path / "table", tmp_path / "in.parquet", IM)
    converted(tmp_path / "lines", records, IM)
    assert texts(tmp_path / "table" / "out") == texts(tmp_path / "lines" / "out")


def test_chats_in_a_csv_are_json_text(tmp_path, out):
    cell = json.dumps(PLAIN[:2]).replace('"', '""')
    (tmp_path / "in.csv").write_text(f'id,messages\n1,"{cell}"\n')
    converted(tmp_path, tmp_path / "in.csv", IM)
    assert [counted for _, counted in texts(out)] == ["yes<|im_end|>\n"]


def test_other_fields_keep_their_types_and_kept_messages_are_json(tmp_path, out):
    more = {"prompt": "a", "input": 3, "n": 1.5}
    converted(tmp_path, [{"messages": PLAIN, **more}], keep_messages=True)
    (sample,) = shardctl.open(out)
    assert {name: sample[name] for name in more} == more
    assert json.loads(sample["messages"]) == PLAIN


def test_a_template_that_writes_the_day_gets_it_from_the_step(tmp_path, out):
    with pytest.raises(ShardctlError, match="the setting date gives one"):
        converted(tmp_path / "none", [CHATS["plain"]], CHANNELS)
    converted(tmp_path, [CHATS["plain"]], CHANNELS, date="2026-01-31")
    assert texts(out)[0][0].startswith("[date 2026-01-31]")
    with pytest.raises(UsageError, match="must be a day such as 2026-01-31"):
        converted(tmp_path / "wrong", [CHATS["plain"]], CHANNELS, date="31.1.2026")
