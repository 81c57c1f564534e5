"""Write docs/llms.txt, the list of pages for language models, and docs/SKILL.md, what a coding
agent should know of shardctl.

    python scripts/docs/write_llms.py

The list has the titles and the first sentences of the pages. The skill has the texts of the
commands and options. tests/test_llms.py fails where they are old, and where a page names an option
that does not exist.
"""

from __future__ import annotations

import re
from pathlib import Path

from write_cli_docs import all_commands, shown_options

from shardctl.cli.help import SECTIONS, section_pages

DOCS = Path(__file__).parents[2] / "docs"

SKILL = "SKILL"

WRITTEN = (SKILL, "troubleshooting", "api", "cli")
"""Pages whose first sentence says how they are written."""

SUMMARY = (
    "shardctl is a command-line tool and a Python library. It converts images, texts and tables "
    "into sharded Arrow files once,"
    " in parallel. It verifies and repairs them, and loads them for training."
)

USED = {
    "convert": (
        "--resize",
        "--crop",
        "--store",
        "--split",
        "--shuffle",
        "--labels",
        "--tokenizer",
        "--update",
        "--overwrite",
        "--dry-run",
    ),
    "verify": ("--level",),
    "inspect": ("--stats", "--head", "--key", "--where", "--html"),
    "bench": ("--consumer-rate", "--batch-size", "--baseline"),
    "export": ("--to", "--columns", "--where", "--dry-run"),
}
"""The commands that an agent needs most, and the options that matter."""

HEAD = """---
name: shardctl
description: Convert raw training data (images, text, tables, other tools' shards) into verified, sharded Arrow files with
  shardctl, check and repair them, and load them for training. Use it for preprocessing, sharding, tokenizing and data loaders.
---

# shardctl for coding agents

Use shardctl if a training job decodes, resizes or tokenizes the same files in every epoch. Use it also to check, split or clean
a dataset, or to move it to another format. Do not use it for video.

## The usual way

```sh
shardctl convert photos out --resize 256 --crop 224 --store raw --dry-run --json
shardctl convert photos out --resize 256 --crop 224 --store raw --json
shardctl verify out --json
```

```python
import shardctl

ds = shardctl.open("out", split="train")
for batch in ds.loader(batch_size=64, shuffle=True, seed=0):
    images, labels = batch["image"], batch["label"]
```

## Commands
"""

TAIL = """
`shardctl COMMAND --help` has all options. `shardctl help PAGE` shows a page. `shardctl help "WORDS OF A MESSAGE"` explains a
message.

## Output and exit codes

Give `--json`: one JSON object on stdout, and nothing else there. Warnings go to stderr. `shardctl help json` has all keys. An
error is `{"error": SENTENCE, "exit_code": CODE}`.

| exit code | meaning |
| --- | --- |
| 0 | done |
| 1 | a check found something, or too many inputs were rejected |
| 2 | wrong usage: the sentence says what to write |
| 3 | it cannot be done: a file, a disk, a store, a package |
| 130 | interrupted: run the same command again to continue |

## Common mistakes

- The destination is the last argument: `shardctl convert SRC... DST`. There is no `--output`.
- To change an option of a finished dataset, add `--overwrite`. To follow changed sources, use `--update`.
- Read `rejected` and `warnings` in the JSON, also if the exit code is 0. `rejects.jsonl` (`shardctl inspect DST --files` has its path) lists each rejected input.
- Stored pixels are 0 to 255. Give `normalize` mean and std on that scale.
- COCO, YOLO and VOC files are not found by themselves: `--labels coco:FILE`.
- A tokenizer is a file: `--tokenizer tokenizer.json`. shardctl downloads nothing.
- Do not edit files of a dataset. `verify` finds it, and `repair` undoes it.
- If a package is missing, the message ends with the `pip install` line to run.
"""


def llms() -> str:
    """Return llms.txt: the pages by section, with what each is about."""
    lines = [
        "# shardctl",
        "",
        f"> {SUMMARY}",
        "",
        "Each page is Markdown. `shardctl help NAME` shows the same page in a terminal.",
        "",
    ]
    for heading, folder in SECTIONS.items():
        if found := section_pages(folder):
            lines += [f"## {heading}", "", *map(_entry, found), ""]
    return "\n".join(lines)


def skill() -> str:
    """Return SKILL.md: when to use shardctl, the commands and options that matter, exit codes, and
    common mistakes."""
    texts = dict(all_commands())
    lines = [HEAD]
    for name, wanted in USED.items():
        context = texts[name]
        lines += [
            f"`shardctl {name}`: {context.command.get_short_help_str(200)}",
            "",
            "| option | what it does |",
            "| --- | --- |",
        ]
        for option in shown_options(context):
            names = [each for each in option.opts if each in wanted]
            if names:
                text = " ".join((option.help or "").split()).replace("\b", "").replace("|", r"\|")
                lines.append(f"| `{names[0]}` | {_sentence(text)} |")
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n" + TAIL


def _entry(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    title = re.sub(r"[`*]", "", text.partition("\n")[0].lstrip("# "))
    if page.stem == SKILL:
        title = "shardctl for coding agents"
    about = "" if page.stem in WRITTEN else f": {_first(text)}"
    return f"- [{title}]({page.relative_to(DOCS).as_posix()}){about}"


def _first(text: str) -> str:
    """Return the first sentence of a page, without links."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    prose = (
        re.sub(r"^(#.*|<!--.*-->|\|.*|\[[^]]*\]\([^)]*\))$", "", text, flags=re.MULTILINE)
        .strip()
        .partition("\n\n")[0]
    )
    return _sentence(re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", " ".join(prose.split())))


def _sentence(text: str) -> str:
    found = re.match(r".*?[.:](?= [A-Z`]|$)", text)
    return found[0].rstrip(".:") + "." if found else text


if __name__ == "__main__":
    (DOCS / f"{SKILL}.md").write_text(skill(), encoding="utf-8")
    (DOCS / "llms.txt").write_text(llms(), encoding="utf-8")
