"""Text of a model as safe HTML: Markdown without raw HTML, images or odd links; JSON indented; anything else as it is.

What was said can always be read as it was: a text that is rendered keeps its source beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt
from markupsafe import Markup

if TYPE_CHECKING:
    from markdown_it.renderer import RendererHTML
    from markdown_it.token import Token
    from markdown_it.utils import EnvType, OptionsDict

LONGEST = 60_000
"""Characters beyond which a text is shown as it is."""
_SIGNS = re.compile(r"^(#{1,6} |[-*+] |\d+[.)] |> |```|~~~|\|.*\|)|\*\*\S|__\S|`[^`\n]+`|\]\(", re.MULTILINE)


def _heading(self: RendererHTML, tokens: Sequence[Token], at: int, options: OptionsDict, env: EnvType) -> str:
    """A heading of a message is none of the page's; its signs stay, for `#### 42` is an answer to many a grader."""
    return f'<p class="said-heading">{tokens[at].markup} ' if tokens[at].nesting == 1 else "</p>\n"


def _link(self: RendererHTML, tokens: Sequence[Token], at: int, options: OptionsDict, env: EnvType) -> str:
    tokens[at].attrSet("rel", "noreferrer noopener nofollow")
    return self.renderToken(tokens, at, options, env)


def _reader() -> MarkdownIt:
    found = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
    found.disable(["image", "html_block", "html_inline"])
    found.add_render_rule("heading_open", _heading)
    found.add_render_rule("heading_close", _heading)
    found.add_render_rule("link_open", _link)
    return found


_READER = _reader()


def rendered(text: str) -> Markup | None:
    """The text as HTML when it is Markdown; None when it reads the same as it is."""
    if len(text) > LONGEST or not _SIGNS.search(text):
        return None
    return Markup(_READER.render(text))


def indented(text: str) -> str | None:
    """JSON as a person reads it; None for anything else."""
    if text.lstrip()[:1] not in ("{", "[") or len(text) > LONGEST:
        return None
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
