"""An answer beside what was expected: the words that both have, those that are missing, those that are too many."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

LONGEST = 8_000
"""Characters of either side; longer ones are shown beside each other without a diff."""
_WORDS = re.compile(r"\w+|\s+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class DiffPiece:
    kind: Literal["same", "missing", "extra"]
    text: str


def pieces(expected: str, answer: str) -> Sequence[DiffPiece]:
    """From what was expected to what was said, by words. Empty when there is nothing to tell: the two are equal, one
    is empty, too long, or they have no word in common."""
    if not expected or not answer or expected == answer or max(len(expected), len(answer)) > LONGEST:
        return ()
    a, b = _WORDS.findall(expected), _WORDS.findall(answer)
    found: list[DiffPiece] = []
    common = False
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if tag == "equal":
            common = common or any(word.strip() for word in a[i1:i2])
            found.append(DiffPiece("same", "".join(a[i1:i2])))
            continue
        if i2 > i1:
            found.append(DiffPiece("missing", "".join(a[i1:i2])))
        if j2 > j1:
            found.append(DiffPiece("extra", "".join(b[j1:j2])))
    return found if common else ()
