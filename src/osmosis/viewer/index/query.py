"""Which rollouts are wanted, in which order: what the form above the table says. Knows no SQL."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from osmosis.viewer.asked import Asked

OUTCOMES = ("passed", "not-passed", "failed", "skipped")
SORTS = ("row", "reward", "tokens", "cost", "duration", "turns", "tools", "started", "unsure")
"""Beside these: `score:NAME`. `unsure`: the first score is nearest to the pass threshold."""
FILTERS = (
    "outcome", "category", "q", "tool", "score", "low", "high", "row", "step", "model", "label", "agree", "sort", "dir",
)  # fmt: skip
"""What narrows or orders a table, by its name in an address."""
_DOWNWARDS = ("tokens", "cost", "duration", "turns", "tools")
"""Sorted with the largest first unless asked otherwise."""


@dataclass(frozen=True, slots=True)
class RolloutQuery:
    outcome: str = ""
    category: str = ""
    text: str = ""
    """Words that the conversation holds; `"a phrase"`, `begin*`, `-without`."""
    tool: str = ""
    score: str = ""
    """The score that `low` and `high` are about; empty: the first one."""
    low: float | None = None
    high: float | None = None
    row: int | None = None
    step: int | None = None
    """Of a training run; None: all."""
    model: str = ""
    label: str = ""
    """Given by a person; `*`: any, `-`: none."""
    agree: Literal["", "no"] = ""
    """`no`: only rows of which some attempts pass and some do not."""
    sort: str = "row"
    down: bool = False

    @property
    def plain(self) -> bool:
        """Whether it wants every rollout, in whatever order."""
        return not (
            self.outcome or self.category or self.text or self.tool or self.model or self.label or self.agree
            or self.low is not None or self.high is not None or self.row is not None or self.step is not None
        )  # fmt: skip

    @property
    def by_slots(self) -> bool:
        """Whether it wants all attempts at rows that disagree, in order: no rollout has to be looked at for that."""
        return bool(self.agree) and self.sort == "row" and replace(self, agree="").plain


def query_of(asked: Asked) -> RolloutQuery:
    """From an address; what it does not know counts as not given."""
    sort = asked.text("sort", "row")
    if sort not in SORTS and not sort.startswith("score:"):
        sort = "row"
    way = asked.one_of("dir", ("up", "down"))
    return RolloutQuery(
        outcome=asked.one_of("outcome", OUTCOMES),
        category=asked.text("category"),
        text=asked.text("q"),
        tool=asked.text("tool"),
        score=asked.text("score"),
        low=asked.real("low"),
        high=asked.real("high"),
        row=asked.number("row"),
        step=asked.number("step"),
        model=asked.text("model"),
        label=asked.text("label"),
        agree="no" if asked.text("agree") == "no" else "",
        sort=sort,
        down=way == "down" if way else sort in _DOWNWARDS,
    )
