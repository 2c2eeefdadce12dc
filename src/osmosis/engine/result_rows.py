"""The rows of a results document: every rollout with what there is to tell of it, and the pass rates of each row.

Of a run of up to `MOST_GATHERED` rollouts they are gathered while the journal stores them, else they are read from it,
so a large run needs no more memory here than a small one. Decides nothing about the document around them.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import IO

import orjson

from osmosis.base.json_types import JsonObject
from osmosis.records.plan import EvalPlan
from osmosis.records.rollout import Rollout, RolloutStatus

from .ended import REWARD
from .journal import Journal

_SUCCESS, _SKIPPED = RolloutStatus.SUCCESS.value, RolloutStatus.SKIPPED.value  # `value` is two calls, once a rollout

MOST_GATHERED = 20_000
"""Rollouts whose part of the document is kept in memory, some 500 bytes each."""

RunText = tuple[int, "bytes | memoryview", int]
"""A run of the document: its row, its JSON, and how it did (`PassRates.mark`)."""


class Gathered:
    """The runs of the document, gathered while the journal stores them: reading a line costs more than making it."""

    def __init__(self, journal: Journal, plan: EvalPlan, *, most: int = MOST_GATHERED) -> None:
        self._journal = journal
        self._most = most
        self._plan = plan
        self.rates = PassRates(plan)
        # One text for all: a thousand small ones would each keep a piece of memory between others that are long free.
        self._text = bytearray()
        self._count = 0
        self._where = array("q")
        """Of each run its row, its attempt, where its text begins and ends, and its mark."""
        journal.heard = self._heard

    def in_order(self) -> Iterator[RunText] | None:
        """Every run of the journal, by row, then attempt; None when not all of them were gathered."""
        if self._journal.written_here != self._count:
            return None
        numbers, text = iter(self._where), memoryview(self._text)
        ordered = sorted(zip(numbers, numbers, numbers, numbers, numbers, strict=True))
        return ((row, text[begin:end], mark) for row, _, begin, end, mark in ordered)

    def _heard(self, rollout: Rollout, line: bytes, as_is: bool) -> None:
        if self._count == self._most:
            self._count, self._text, self._where = 0, bytearray(), array("q")
            self._journal.heard = None
            return
        fields = vars(rollout)
        values = _values_of(fields) if as_is else None
        if values is None:
            run = run_part(orjson.loads(line), self._plan)
        else:
            run = _run_part(fields, fields["status"]._value_, vars(fields["usage"]), values, self._plan)
        text = self._text
        begin = len(text)
        text += orjson.dumps(run)
        self._where.extend((fields["row_index"], fields["attempt"], begin, len(text), self.rates.mark(run)))
        self._count += 1


def write_rows(out: IO[bytes], journal: Journal, plan: EvalPlan, gathered: Gathered | None = None) -> None:
    """All rows, with commas between."""
    runs = gathered.in_order() if gathered is not None else None
    if gathered is None or runs is None:
        rates = PassRates(plan)
        runs = _read(journal, plan, rates)
    else:
        rates = gathered.rates
    between = b""
    for row, of_row in groupby(runs, key=itemgetter(0)):
        _, texts, marks = zip(*of_row, strict=True)
        out.write(b'%b{"row_index":%d,"runs":[%b],"pass_rate":%b}' % (between, row, b",".join(texts), rates.of(marks)))
        between = b","


def _read(journal: Journal, plan: EvalPlan, rates: PassRates) -> Iterator[RunText]:
    for line in journal.in_order():
        run = run_part(line, plan)
        yield line["row_index"], orjson.dumps(run), rates.mark(run)


class PassRates:
    """The pass rates of a row: they count as the summary's do, failures as no pass, skipped runs nowhere."""

    def __init__(self, plan: EvalPlan) -> None:
        self._functions = plan.score_fns
        self._threshold = plan.pass_threshold
        self._numbers: dict[tuple[tuple[str, bool], ...] | None, int] = {None: 0}
        self._marks: list[tuple[tuple[str, bool], ...] | None] = [None]
        """Which scores runs have and which of them passed, each combination once: nearly all runs have one of two."""
        self.of = lru_cache(4096)(self._of)
        """The rates as JSON, of the marks of a row's runs."""

    def mark(self, run: JsonObject) -> int:
        """How a run did, as a number that `of` understands."""
        if run["status"] == _SKIPPED:
            return 0
        threshold = self._threshold
        found = [(name, value is not None and value >= threshold) for name, value in run["scores"].items()]
        if "reward" in run:
            own = run["reward"]
            found.append((REWARD, own is not None and own >= threshold))
        key = tuple(found)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._marks)
            self._marks.append(key)
        return number

    def _of(self, marks: tuple[int, ...]) -> bytes:
        counted = [dict(found) for found in (self._marks[mark] for mark in marks) if found is not None]
        if not counted:
            return b"{}"
        names = self._told(dict.fromkeys(name for one in counted for name in one))
        return orjson.dumps({name: sum(one.get(name, False) for one in counted) / len(counted) for name in names})

    def _told(self, found: Collection[str]) -> Iterable[str]:
        """The functions that were asked for, in that order, then what else there is."""
        whole = [
            name for name in self._functions if name in found or not any(one.startswith(f"{name}.") for one in found)
        ]
        return dict.fromkeys([*whole, *found])


def _values_of(fields: JsonObject) -> dict[str, float | None] | None:
    """The scores of a rollout's fields; None where something failed."""
    if fields["failure"] is not None:
        return None
    values = {}
    for name, score in fields["scores"].items():
        told = vars(score)
        if told["failure"] is not None:
            return None
        values[name] = told["value"]
    return values


def run_part(line: JsonObject, plan: EvalPlan) -> dict[str, object]:
    """One rollout; `error` only when there is one, `reward` when it is the agent's own. A failed score is null."""
    scores, failure = line.get("scores") or {}, line.get("failure")
    values, broken = {}, {}
    for name, score in scores.items():
        values[name] = score.get("value")
        if score.get("failure"):
            broken[name] = score["failure"]["message"]
    run = _run_part(line, line["status"], line.get("usage") or {}, values, plan)
    if failure:
        run["error"] = failure["message"]
        run["failure"] = {"phase": failure["phase"], "category": failure["category"]}
    if broken:
        run["score_errors"] = broken
    return run


def _run_part(
    line: JsonObject, status: str, usage: JsonObject, values: dict[str, float | None], plan: EvalPlan
) -> dict[str, object]:
    """What every rollout has, failed or not."""
    prompt, completion = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    own = REWARD in values and is_own(REWARD, plan)
    reward = values.pop(REWARD) if own else None
    run: dict[str, object] = {
        "run_index": line["attempt"],
        "success": status == _SUCCESS,
        "scores": values,
        "duration_ms": line.get("duration_ms", 0.0),
        "tokens": prompt + completion,
        "status": status,
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "cost_usd": usage.get("cost_usd"),
        "llm_calls": len(line.get("calls") or ()),
        "tool_calls": line.get("num_tool_calls", 0),
        "finish_reason": line.get("finish_reason"),
        "rollout_id": line.get("rollout_id"),
    }
    if own:
        run["reward"] = reward
    return run


def is_own(name: str, plan: EvalPlan) -> bool:
    """Whether a score is the reward that the agent brought itself, and no function that was asked for."""
    return name == REWARD and name not in plan.score_fns
