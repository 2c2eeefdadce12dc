"""What a person types into a search, in the words of SQLite's FTS5."""

from __future__ import annotations

import re

from .line import spaced

_TERM = re.compile(r'(-?)"([^"]+)"|(-?)(\S+)')
_MOST_TERMS = 20


def matching(text: str) -> str:
    """What a person typed in the words of FTS5; empty when no word is in it. Nothing of it is an operator."""
    wanted: list[str] = []
    unwanted: list[str] = []
    for found in list(_TERM.finditer(spaced(text) if '"' in text else text))[:_MOST_TERMS]:
        minus, words = found[1] or found[3] or "", found[2] or found[4]
        begin = found[4] is not None and words.endswith("*")
        words = " ".join(re.findall(r"\w+", spaced(words)))
        if words:
            (unwanted if minus else wanted).append(f'"{words}"' + ("*" if begin else ""))
    if not wanted:
        return ""
    return " AND ".join(wanted) + "".join(f" NOT {one}" for one in unwanted)
