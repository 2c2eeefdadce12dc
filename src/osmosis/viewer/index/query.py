import re
from dataclasses import dataclass, replace
from typing import Literal

from osmosis.viewer.query_params import QueryParams

from .build import separate_characters

OUTCOMES = ("passed", "not-passed", "failed", "skipped")
SORTS = ("row", "reward", "tokens", "cost", "duration", "turns", "tools", "started", "unsure")
"""Beside `score:NAME`; `unsure` puts scores near the pass threshold first."""
FILTERS = (
    "outcome", "category", "q", "tool", "score", "low", "high", "row", "step", "model", "label", "agree", "sort", "dir",
)  # fmt: skip
_SORTED_DOWN = ("tokens", "cost", "duration", "turns", "tools")
_TERM = re.compile(r'(-?)"([^"]+)"|(-?)(\S+)')
_MAX_TERMS = 20


@dataclass(frozen=True, slots=True)
class RolloutQuery:
    outcome: str = ""
    category: str = ""
    text: str = ""
    """Words in the conversation; `"a phrase"`, `begin*`, `-without`."""
    tool: str = ""
    score: str = ""
    """The score that `low` and `high` are about; the first one when empty."""
    low: float | None = None
    high: float | None = None
    row: int | None = None
    step: int | None = None
    model: str = ""
    label: str = ""
    """A person's label; `*` is any, `-` is none."""
    agree: Literal["", "no"] = ""
    """`no`: only rows where some attempts pass and some do not."""
    sort: str = "row"
    down: bool = False

    @property
    def plain(self) -> bool:
        return replace(self, score="", sort="row", down=False) == RolloutQuery()


def parse_query(params: QueryParams) -> RolloutQuery:
    sort = params.text("sort", "row")
    if sort not in SORTS and not sort.startswith("score:"):
        sort = "row"
    direction = params.choice("dir", ("up", "down"))
    return RolloutQuery(
        outcome=params.choice("outcome", OUTCOMES),
        category=params.text("category"),
        text=params.text("q"),
        tool=params.text("tool"),
        score=params.text("score"),
        low=params.real("low"),
        high=params.real("high"),
        row=params.integer("row"),
        step=params.integer("step"),
        model=params.text("model"),
        label=params.text("label"),
        agree="no" if params.text("agree") == "no" else "",
        sort=sort,
        down=direction == "down" if direction else sort in _SORTED_DOWN,
    )


def to_fts5(text: str) -> str:
    """Translate a search into SQLite's FTS5 syntax, with every operator quoted; empty when it contains no word."""
    included: list[str] = []
    excluded: list[str] = []
    for term in list(_TERM.finditer(separate_characters(text) if '"' in text else text))[:_MAX_TERMS]:
        minus, words = term[1] or term[3] or "", term[2] or term[4]
        is_prefix = term[4] is not None and words.endswith("*")
        words = " ".join(re.findall(r"\w+", separate_characters(words)))
        if words:
            (excluded if minus else included).append(f'"{words}"' + ("*" if is_prefix else ""))
    if not included:
        return ""
    return " AND ".join(included) + "".join(f" NOT {term}" for term in excluded)
