"""Ask a judge which of two runs' answers to a row is better: twice, in both orders."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, takewhile
from pathlib import Path
from typing import ClassVar

from pydantic import ValidationError as PydanticError

from osmosis.base.files import append_line
from osmosis.base.jsonable import JsonObject
from osmosis.base.net import is_loopback
from osmosis.engine.journal import Journal
from osmosis.engine.rubrics.conversations import digest_of
from osmosis.engine.rubrics.rubric_files import RubricConfig
from osmosis.errors import ValidationError
from osmosis.llm.providers import Price, price_of
from osmosis.metrics.bradley_terry import Pair, Preference, Strength, compare_pairs, rank_runs
from osmosis.metrics.formats import interval as format_interval, percent
from osmosis.metrics.intervals import bounded_interval
from osmosis.records.base import Record
from osmosis.records.run.plan import Budget
from osmosis.records.run.report import Interval
from osmosis.records.run.rollout import Category, RolloutStatus, Usage
from osmosis.sdk.chat import text_of
from osmosis.sdk.judge import RESPONSE_SCHEMA, BadReply, Judge, JudgeQuestion, read_fields
from osmosis.sdk.judge_model import JudgeUsage, ProviderRequestError, judge_usage
from osmosis.sdk.messages import solution_of

NAME = "preferences.jsonl"
_WINNERS = {"A": 1.0, "B": 0.0, "TIE": 0.5}
_UNREACHABLE = {Category.AUTH.value, Category.MODEL_NOT_FOUND.value, Category.CONNECTION.value}


@dataclass(frozen=True)
class PairQuestion(JudgeQuestion):
    other: str = ""
    properties: ClassVar[JsonObject] = {"winner": {"enum": ["A", "B", "tie"]}, "explanation": {"type": "string"}}
    schema: ClassVar[JsonObject] = {**RESPONSE_SCHEMA, "properties": properties, "required": list(properties)}
    task = "You compare two answers, impartially, by one rubric and by nothing else."
    form = '{"winner": ..., "explanation": ...}'
    filled = '{"winner": "A", "B" or "tie", "explanation": "<one or two sentences>"}'
    rule = ""
    scale = "Which answer is better by it? In which order they stand says nothing."

    def candidates(self) -> list[tuple[str, str, str]]:
        return [("Answer A", "ANSWER_A", self.solution), ("Answer B", "ANSWER_B", self.other)]

    @staticmethod
    def read(candidate: object) -> tuple[float, str]:
        winner, explanation = read_fields(candidate, "winner")
        if (first := _WINNERS.get(str(winner).strip().upper())) is None:
            raise BadReply(f"the reply's winner is {winner!r}, not A, B or tie")
        return first, explanation


class StoredVerdict(Record):
    """One answer of a judge, or why it gave none; a line of `preferences.jsonl`."""

    key: str  # hash of judge, rubric, row and both answers, in their order; `study` of judge and rubric
    study: str
    judge: str
    rubric: str
    first: float | None = None  # 1 when the answer that came first is better, 0 when the other is, 0.5 for a tie
    reason: str
    usage: Usage


def read_verdicts(path: Path) -> Iterator[StoredVerdict]:
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            yield StoredVerdict.model_validate_json(line)
        except PydanticError:
            continue  # cut off while it was written: asked again


@dataclass(frozen=True, slots=True)
class AnswerPair:
    index: int
    row: str
    runs: Pair
    answers: tuple[str, str]
    prompt: str
    row_hash: str

    def orders(self, study: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield both orders of the answers, each with the key of its verdict; nothing for twice the same text."""
        if self.answers[0].strip() != self.answers[1].strip():
            for order in (self.answers, self.answers[::-1]):
                yield digest_of([study, self.row_hash or self.prompt, *order]), order


@dataclass(frozen=True)
class PairedAnswers:
    names: list[str]
    pairs: list[AnswerPair]
    unpaired: int


def pair_answers(journals: Sequence[Journal], rows: int | None = None) -> PairedAnswers:
    """Pair the first answers of every two runs by row; raise ValidationError where two runs have no row in common."""
    names = [journal.folder.name for journal in journals]
    sides: list[dict[str, tuple[str, str, str, int]]] = [{} for _ in names]
    for side, journal in zip(sides, journals, strict=True):
        for rollout in journal.rollouts():
            if rollout.attempt == 0 and rollout.status is not RolloutStatus.SKIPPED:
                opening = takewhile(lambda message: message.get("role") != "assistant", rollout.messages)
                prompt = "\n\n".join(text_of(message) for message in opening if message.get("role") == "user")
                answer = "" if rollout.failure is not None else solution_of(rollout.messages)
                side[rollout.key[1]] = answer, prompt, rollout.hashes.get("row", ""), rollout.row_index
    pairs: list[AnswerPair] = []
    unpaired = 0
    for a, b in combinations(range(len(sides)), 2):
        before = len(pairs)
        for row in sides[a].keys() & sides[b].keys():
            (first, prompt, row_hash, index), (second, _, other_hash, _) = sides[a][row], sides[b][row]
            if row_hash == other_hash and first.strip() and second.strip():
                pairs.append(AnswerPair(index, row, (a, b), (first, second), prompt, row_hash))
            else:
                unpaired += 1
        if len(pairs) == before:
            message = f"{names[a]} and {names[b]} have no row that both answered"
            raise ValidationError(message, hint="compare runs over the same dataset: osmosis eval list")
    pairs.sort(key=lambda pair: (pair.index, pair.row, pair.runs))
    chosen = set(list(dict.fromkeys(pair.row for pair in pairs))[:rows])
    return PairedAnswers(names, [pair for pair in pairs if pair.row in chosen], unpaired)


class AnswerComparison(Record):
    judge: str
    rubric: str
    strengths: list[Strength]
    preferences: list[Preference]
    first: float | None  # share of questions whose first answer was preferred, ties as half: 0.5 without bias
    first_interval: Interval | None
    counts: dict[str, int]
    """Numbers of pairs of answers: judged in both orders, changed with the order (ties), identical (ties, not asked),
    failed (the judge gave no verdict), left (not judged yet), unpaired (without an answer, or edited in between)."""
    cost_usd: float | None
    notes: list[str]

    def __str__(self) -> str:
        lines = [str(preference) for preference in self.preferences]
        if between := self.first_interval:
            head = "no clear" if between.low <= 0.5 <= between.high else "the judge has a"
            share = f"{percent(self.first)} ({format_interval(between, percent)}; 50 % without bias)"
            lines.append(f"{head} bias by position: it prefers the answer that comes first in {share}")
        pairs = ", ".join(f"{count:,} {name}" for name, count in self.counts.items() if count)
        return "\n".join([*lines, f"pairs of answers: {pairs}", *self.notes])


def compare_verdicts(answers: PairedAnswers, stored: Sequence[StoredVerdict], stopped: str = "") -> AnswerComparison:
    """Return what the verdicts of one judge by one rubric say; raise ValidationError when they are about no pair."""
    verdicts = {verdict.key: verdict for verdict in stored}
    rows: dict[str, dict[Pair, float]] = {}
    firsts: dict[str, list[float]] = {}
    notes: list[str] = []
    own: set[str] = set()
    counts = dict.fromkeys(("judged", "changed", "identical", "failed", "left"), 0) | {"unpaired": answers.unpaired}
    for pair in answers.pairs:
        keys = [key for key, _ in pair.orders(stored[0].study if stored else "")]
        own.update(keys)
        both = [verdicts[key] for key in keys if key in verdicts]
        shares = [verdict.first for verdict in both if verdict.first is not None]
        failed = [verdict.reason for verdict in both if verdict.first is None]
        if len(shares) < len(keys):
            counts["failed" if failed else "left"] += 1
            if failed and not notes:
                notes.append(failed[0])
            continue
        counts["judged" if keys else "identical"] += 1
        rows.setdefault(pair.row, {})[pair.runs] = shares[1] if sum(shares) == 1 else 0.5
        if keys:
            counts["changed"] += sum(shares) != 1
            firsts.setdefault(pair.row, []).extend(shares)
    if stopped and counts["left"]:
        notes.append(stopped)
    if not rows:
        raise ValidationError(f"the judge gave no verdict: {notes[0] if notes else 'nothing was asked'}")
    strengths = rank_runs(answers.names, list(rows.values()))
    sums, sizes = [sum(row) for row in firsts.values()], [len(row) for row in firsts.values()]
    return AnswerComparison(
        judge=stored[0].judge if stored else "nobody",
        rubric=stored[0].rubric if stored else "",
        strengths=strengths,
        preferences=compare_pairs(strengths, list(rows.values())),
        first=sum(sums) / sum(sizes) if sizes else None,
        first_interval=bounded_interval(sums, sizes),
        counts=counts,
        cost_usd=sum((verdict.usage for verdict in stored if verdict.key in own), Usage()).cost_usd,
        notes=notes,
    )


class PairJudging:
    """The questions about paired answers to one judge. A verdict is on the disk before it counts."""

    def __init__(
        self, answers: PairedAnswers, judge: Judge, rubric: RubricConfig, path: Path, references: Mapping[str, str]
    ) -> None:
        self.answers, self.judge, self._rubric, self._path = answers, judge, rubric.id, path
        self.spec, system = judge.resolved.spec, str(judge.info.get("system_prompt") or "") or None
        self.name = f"{judge.resolved.provider}/{judge.resolved.model}"
        self.study = digest_of([self.spec.model_dump(mode="json", exclude={"price"}), rubric.rubric, system])
        self.verdicts = [verdict for verdict in read_verdicts(path) if verdict.study == self.study]
        judged = {verdict.key for verdict in self.verdicts if verdict.first is not None}
        orders = {key: (pair, order) for pair in answers.pairs for key, order in pair.orders(self.study)}
        self.cost = sum(verdict.usage.cost_usd or 0.0 for verdict in self.verdicts if verdict.key in orders)
        self.open: dict[str, PairQuestion] = {}
        for key, (pair, (first, second)) in orders.items():
            if key not in judged:
                texts = system, pair.prompt or None, references.get(pair.row_hash)
                self.open[key] = PairQuestion(rubric.rubric, first, 0.0, 1.0, *texts, other=second)

    def check_budget(self, max_cost: float | None) -> float | None:
        """Return about what the open questions cost, in US dollars; raise ValidationError for a budget and no price."""
        local = is_loopback(self.spec.base_url)
        price = Price(0.0, 0.0) if self.spec.kind == "offline" else price_of(self.spec, local=local)
        if price is None and max_cost is not None:
            hint = "give --price IN,OUT (USD per million tokens)"
            raise ValidationError(f"the price of {self.name} is unknown, so --max-cost cannot be enforced", hint=hint)
        prompts = [question.prompt(marked=False).messages for question in self.open.values()]
        tokens = sum(len(text_of(message)) for messages in prompts for message in messages) // 4
        return price.of(tokens, 100 * len(prompts)) if price else None

    async def run(
        self,
        concurrency: int = 8,
        max_cost: float | None = None,
        on_verdict: Callable[[object], object] = lambda _: None,
    ) -> AnswerComparison:
        """Ask what is open. Cancelled, it goes on at the next time; raise when the judge cannot be reached at all."""
        self.check_budget(max_cost)
        budget, questions = Budget(max_cost_usd=max_cost), iter(self.open.items())
        unreachable: list[ProviderRequestError] = []
        before = len(self.verdicts)

        async def work() -> None:
            while not (unreachable or budget.used_up(self.cost, 0)) and (entry := next(questions, None)):
                error = await self._ask(*entry)
                on_verdict(entry)
                is_mute = all(verdict.first is None for verdict in self.verdicts[before:])
                if error and is_mute and error.details.get("category") in _UNREACHABLE:
                    unreachable.append(error)

        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            await asyncio.gather(*(work() for _ in range(concurrency)))
        finally:
            await self.judge.close()
        if unreachable:
            raise unreachable[0]
        return compare_verdicts(self.answers, self.verdicts, budget.used_up(self.cost, 0) or "")

    async def _ask(self, key: str, question: PairQuestion) -> ProviderRequestError | None:
        counted, problem, first = JudgeUsage(), None, None
        judge_usage.set(counted)
        try:
            verdict = await self.judge.ask(question)
            first, reason = verdict.score, verdict.explanation
        except ProviderRequestError as error:
            problem, reason = error, error.message
        about = {"key": key, "study": self.study, "judge": self.name, "rubric": self._rubric}
        self.verdicts.append(StoredVerdict(**about, first=first, reason=reason, usage=counted.usage))
        append_line(self._path, self.verdicts[-1].to_line())
        self.cost += counted.usage.cost_usd or 0.0
        return problem
