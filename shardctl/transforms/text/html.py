"""The step that takes the markup out of texts."""

from __future__ import annotations

from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from shardctl.errors import InstallError
from shardctl.system.packages import to_install
from shardctl.transforms.settings import Flag, setting
from shardctl.transforms.text.base import TextTransform
from shardctl.transforms.text.packages import version_of

LINES = (
    "address|article|aside|blockquote|br|caption|center|dd|details|dialog|div|dl|dt|fieldset|figcaption|figure|footer|form|h[1-6]"
    "|header|hgroup|hr|legend|li|main|nav|ol|optgroup|option|p|pre|section|select|summary|table|tbody|tfoot|thead|title|tr|ul"
)
"""Elements of which browsers show each on lines of its own (HTML standard, section 15.3, and
options of lists)."""

CELLS = "td|th"

UNSEEN = [
    "script",
    "style",
    "noscript",
    "template",
    "iframe",
    "object",
    "metadata",
    "desc",
    "annotation",
    "annotation-xml",
]
"""Elements whose content is no text of the page. The last four are of pictures and formulas, of
which other text is."""


@dataclass(frozen=True)
class Html(TextTransform):
    """Takes HTML out of texts: tags, comments, scripts and styles go, character references (&amp;)
    become characters."""

    name: ClassVar[str] = "html"
    tags: bool = setting(
        Flag(), True, "Take the tags out; false: only make character references characters."
    )

    def loaded(self, folder: Path | None = None) -> Html:
        """Return this step, having found the parser. Raises InstallError."""
        if self.tags:
            _parser()
        return self

    def versions(self) -> tuple[str, ...]:
        """Return that of the parser, and of what is text: 1 had none of that in pictures and
        formulas."""
        return (version_of("selectolax"), "html 2") if self.tags else ()

    def changed(self, texts: pa.Array) -> pa.Array:
        """Return the texts without markup. Those without any < and & stay what they are."""
        import pyarrow.compute as pc

        marked = pc.match_substring_regex(texts, "[<&]" if self.tags else "&")
        if not marked.true_count:
            return texts
        given = texts.filter(marked)
        plain = pa.array(
            _without_tags(given) if self.tags else map(unescape, given.to_pylist()), pa.string()
        )
        return (
            plain if marked.true_count == len(texts) else pc.replace_with_mask(texts, marked, plain)
        )


def _without_tags(texts: pa.Array) -> list[str]:
    """Return the text that a browser shows, each block element on lines of its own."""
    import pyarrow.compute as pc

    lined = pc.replace_substring_regex(texts, rf"(?i)</?(?:{LINES})(?:[\s/][^<>]*)?>", "\n\\0")
    lined = pc.replace_substring_regex(lined, rf"(?i)<(?:{CELLS})(?:[\s/][^<>]*)?>", " \\0")
    parser, found = _parser(), []
    for text in lined.to_pylist():
        tree = parser(text)
        tree.strip_tags(UNSEEN)
        root = tree.root
        found.append(root.text().strip() if root is not None else "")
    return found


def _parser() -> Any:
    try:
        from selectolax.lexbor import LexborHTMLParser
    except ImportError:
        raise InstallError(
            f"the step html needs selectolax: pip install {to_install('text')}"
        ) from None
    return LexborHTMLParser
