"""How fast the steps of text are, beside the same rules in plain Python or bare pyarrow.compute, in
one process.

    python scripts/bench/bench_text_steps.py [--size 20] [--runs 3] [--steps whitespace …] [--texts
    FILE …] [--json FILE]

Texts are made up: 20,000 words as often as in English, in sentences, lines and paragraphs of many
lengths (about 3 kB each); --texts takes words, lines and all from files instead. The steps get
batches of 4 MB, as the converter hands them over. Every round runs each contender once, in turn;
the plain ones on --plain MB, as some are slow. MB/s: medians, of the bytes before the step and the
seconds of the processor, which other work on the machine disturbs less. Texts of Chinese words are
made for `segment`, and some with markup for `html`.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import plain_text_steps as plain
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.transforms.base import Records
from shardctl.transforms.table import parse_step
from shardctl.transforms.text.base import Fault, TextStep
from shardctl.transforms.text.cleaning import CONTROLS
from shardctl.transforms.text.patterns import PATTERNS

sys.path.append(str(Path(__file__).resolve().parents[1] / "data"))
from text_inputs import Vocabulary

BATCH_BYTES = 4 << 20
MB = 1e6
Whole = Callable[[pa.Array], Any]


@dataclass(frozen=True)
class Case:
    """A step, its settings, and the same in plain Python (a text at a time) or in bare
    pyarrow.compute (all of a batch)."""

    name: str
    one: Callable[[str], Any] | None = None
    whole: Whole | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    texts: str = "english"


CASES = (
    Case("normalize", plain.normalize),
    Case(
        "normalize",
        whole=lambda texts: pc.utf8_normalize(texts, form="NFKC"),
        settings={"unicode": "NFKC"},
    ),
    Case("lower_case", str.lower),
    Case(
        "control_characters",
        whole=lambda texts: pc.replace_substring_regex(texts, f"[{CONTROLS}]+", ""),
    ),
    Case("whitespace", plain.whitespace),
    Case("html", plain.html, texts="html"),
    Case(
        "redact",
        whole=lambda texts: pc.replace_substring_regex(texts, PATTERNS["email"], "[EMAIL]"),
        settings={"patterns": ["email"]},
    ),
    Case(
        "replace",
        whole=lambda texts: pc.replace_substring_regex(texts, "(in|at)g", "\\1k"),
        settings={"pattern": "(in|at)g", "replacement": "\\1k"},
    ),
    Case("stop_words", plain.stop_words, settings={"language": "en"}),
    Case("segment", plain.segment, texts="chinese"),
    Case("filter_length", len, settings={"min_chars": 10}),
    Case("filter_gopher", plain.gopher),
    Case("filter_gopher_repetition", plain.gopher_repetition),
    Case("filter_c4", plain.c4),
    Case("filter_fineweb", plain.fineweb),
    Case(
        "filter_stop_words",
        plain.share_of_stop_words,
        settings={"language": "en", "max_share": 1.0},
    ),
)


def english(size: int, seed: int = 0) -> Iterator[str]:
    """Yield documents of paragraphs and lines, until there are so many bytes."""
    vocabulary, rng, made = Vocabulary(seed), np.random.default_rng(seed), 0
    common = ("the", "of", "and", "to", "with", "that")
    while made < size:
        parts = []
        for sentence in vocabulary.sentences(rng.integers(5, 25, 35)):
            ends = ". " if rng.random() < 0.6 else ".\n" if rng.random() < 0.8 else "!\n\n"
            parts.append(
                f"{sentence.capitalize()} {common[int(rng.integers(6))]} "
                f"{common[int(rng.integers(6))]} it{ends}"
            )
        yield (text := "".join(parts))
        made += len(text.encode())


def chinese(size: int) -> Iterator[str]:
    """Yield documents of common Chinese words, with some marks and English ones."""
    rng = random.Random(0)
    words = [
        "我们",
        "今天",
        "学习",
        "中国",
        "语言",
        "处理",
        "北京",
        "大学",
        "研究",
        "生活",
        "非常",
        "有意思",
        "的",
        "了",
        "是",
        "在",
        "和",
        "数据",
        "模型",
        "训练",
        "清华大学",
        "酒店",
        "房间",
        "服务",
        "不错",
        "很",
        "好",
        "，",
        "。",
        "OK",
    ]
    made = 0
    while made < size:
        text = "".join(rng.choices(words, k=500)) + "\n"
        yield text
        made += len(text.encode())


def marked_up(size: int) -> Iterator[str]:
    """Yield the documents of `english` as pages: a paragraph each line, links, and a script."""
    for text in english(size):
        lines = "".join(
            f'<p class="x">{line} <a href="/a?b=1&amp;c=2">more</a> &amp; so on</p>\n'
            for line in text.split("\n")
        )
        yield (
            "<html><head><title>t</title><script>var x = 1 < "
            f"2;</script></head><body><div>{lines}</div></body></html>"
        )


def texts_of(files: list[Path], size: int) -> Iterator[str]:
    """Yield documents of 20 paragraphs each from files, in an order that is drawn."""
    paragraphs = [
        part
        for path in files
        for part in path.read_text(encoding="utf-8").split("\n\n")
        if part.strip()
    ]
    rng, made = random.Random(0), 0
    while made < size:
        text = "\n\n".join(rng.choices(paragraphs, k=20))
        yield text
        made += len(text.encode())


def batches(texts: list[str]) -> list[pa.Array]:
    """Return texts in arrays of about 4 MB."""
    found, part, size = [], [], 0
    for text in texts:
        part.append(text)
        size += len(text.encode())
        if size >= BATCH_BYTES:
            found.append(pa.array(part))
            part, size = [], 0
    return [*found, pa.array(part, pa.string())] if part else found


def seconds(work: Callable[[], Any]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def measured(case: Case, texts: list[str], few: list[str], runs: int) -> dict[str, Any]:
    """Return the MB/s of a step and of its plain counterpart, and their ratio."""
    step = parse_step({"name": case.name, **case.settings}).loaded()
    arrays, few_arrays = batches(texts), batches(few)
    faults: list[Fault] = []

    def ours() -> None:
        faults.clear()
        for array in arrays:
            if isinstance(step, TextStep):
                step.work(array, faults.append)
            else:
                rows = np.arange(len(array))
                records = Records(0, rows, pa.record_batch({"text": array}))
                list(
                    step.begin(Path(), {}).apply(
                        records,
                        lambda row, rejection: faults.append(Fault(row, rejection.error, "")),
                    )
                )

    def theirs() -> None:
        if case.whole is not None:
            for array in arrays:
                case.whole(array)
        else:
            assert case.one is not None
            for array in few_arrays:
                made = list(map(case.one, array.to_pylist()))
                if isinstance(made[0], str):
                    pa.array(made)

    size, small = (sum(array.nbytes for array in each) / MB for each in (arrays, few_arrays))
    times: list[tuple[float, float]] = []
    for number in range(runs + 1):  # the first warms up
        pair = (
            (seconds(ours), seconds(theirs))
            if number % 2
            else tuple(reversed((seconds(theirs), seconds(ours))))
        )
        times.append((pair[0], pair[1]))
    own = size / statistics.median(pair[0] for pair in times[1:])
    other = (size if case.whole is not None else small) / statistics.median(
        pair[1] for pair in times[1:]
    )
    figures = {
        "MB/s": own,
        "plain": other,
        "by": "pyarrow" if case.whole is not None else "Python",
        "ratio": own / other,
    }
    return {"step": case.name, **case.settings, **figures, "rejected": len(faults)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=float, default=20, help="MB of text")
    parser.add_argument(
        "--plain", type=float, default=4, help="MB of text for what is in plain Python"
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", nargs="*")
    parser.add_argument("--texts", nargs="*", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    makers = {"english": english, "chinese": chinese, "html": marked_up}
    if given.texts:
        makers["english"] = lambda size: texts_of(given.texts, size)
    made: dict[str, list[str]] = {}
    found = []
    print(f"{'step':26} {'MB/s':>8} {'plain':>8}  {'by':8} {'ratio':>6}  rejected")
    for case in CASES:
        if given.steps and case.name not in given.steps:
            continue
        texts = made.setdefault(case.texts, list(makers[case.texts](int(given.size * MB))))
        few = texts[: max(1, int(len(texts) * given.plain / given.size))]
        row = measured(case, texts, few, given.runs)
        found.append(row)
        print(
            f"{row['step']:26} {row['MB/s']:8.1f} {row['plain']:8.1f}  {row['by']:8} "
            f"{row['ratio']:6.2f}  {row['rejected']}"
        )
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
