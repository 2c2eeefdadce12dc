import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, get_args

from rich.console import Console, Group
from rich.panel import Panel
from rich.text import Text
from typer import Argument, Option

from osmosis.base.jsonable import JsonObject
from osmosis.cli.core import completion
from osmosis.cli.core.context import AppContext, current
from osmosis.cli.core.output import Mode
from osmosis.cli.core.render import draw_list, failure_kind, print_text
from osmosis.cli.core.results import Column, DetailResult, ListResult, NextStep, Result, build_columns, clean
from osmosis.cli.eval.report import GroupBy, Html, Junit, Md, Reduce, ReportFile, report
from osmosis.cli.eval.run_sources import LocalRun, RunFinder, StoredRun, find_row, is_same_row, open_run
from osmosis.cli.eval.runs import run_info
from osmosis.errors import UsageError
from osmosis.metrics.formats import dollars
from osmosis.records.run.rollout import Message, Rollout, RolloutStatus, Score, get_reasoning, list_images, list_sources
from osmosis.records.run.rows import Row
from osmosis.sdk.chat import text_of

Outcome = Literal["failed", "wrong", "skipped", "passed"]
ORDER: tuple[Outcome, ...] = get_args(Outcome)


@dataclass(frozen=True)
class LineQuery:
    limit: int = 50
    outcome: Outcome | None = None
    below: float | None = None


def list_lines(run: StoredRun, query: LineQuery) -> tuple[list[JsonObject], int]:
    matching = []
    for rollout in run.outcomes():
        value, outcome = judge(run, rollout)
        if query.outcome in (None, outcome) and (query.below is None or (value is not None and value < query.below)):
            worth = value if value is not None else float("-inf")
            matching.append((ORDER.index(outcome), worth, rollout.row_index, rollout.attempt, rollout.key))
    matching.sort(key=lambda entry: entry[:4])
    page = matching[: query.limit]
    rows = run.rows([row_index for _, _, row_index, _, _ in page]) if page else {}
    return [_build_line(run, run.read(key), rows.get(row_index)) for _, _, row_index, _, key in page], len(matching)


def judge(run: StoredRun, rollout: Rollout) -> tuple[float | None, Outcome]:
    if rollout.status is RolloutStatus.SKIPPED:
        return None, "skipped"
    score = rollout.scores.get(run.primary or "") or next(iter(rollout.scores.values()), None)
    value = score.value if score is not None else None
    if rollout.failure is not None or value is None:
        return value, "failed"
    return value, "passed" if value >= run.pass_threshold else "wrong"


def _build_line(run: StoredRun, rollout: Rollout, row: Row | None) -> JsonObject:
    value, outcome = judge(run, rollout)
    score = rollout.scores.get(run.primary or "") or next(iter(rollout.scores.values()), None)
    failure = rollout.first_failure
    expected = row.ground_truth if row is not None and is_same_row(row, rollout) else None
    reason = score.reason if score is not None else None
    return {
        "place": f"{rollout.row_index}/{rollout.attempt}",
        "row_index": rollout.row_index,
        "attempt": rollout.attempt,
        "status": rollout.status.value,
        "outcome": outcome,
        "score": value,
        "prompt": find_text(rollout.messages, "user"),
        "expected": expected,
        "answer": find_text(rollout.messages[::-1], "assistant"),
        "reason": failure.message if failure is not None else reason,
        "failure": failure.category.value if failure is not None else None,
        "tokens": rollout.usage.total_tokens,
        "duration_ms": rollout.duration_ms,
    }


def find_text(messages: list[Message], role: str) -> str | None:
    return next((text for message in messages if message.get("role") == role and (text := text_of(message))), None)


def _shorten(value: object, size: int = 60) -> str:
    text = " ".join(clean(value).split())
    return text if len(text) <= size else f"{text[: size - 1]}…"


def _end(value: object) -> str:
    text = " ".join(clean(value).split())
    return text if len(text) <= 50 else f"…{text[-49:]}"


COLUMNS = (
    *build_columns("place=Row", "outcome=Outcome"),
    Column("score", "Score", "right", show=lambda value: "-" if value is None else f"{value:g}"),
    Column("prompt", "Question", show=_shorten),
    Column("expected", "Expected", show=_shorten),
    Column("answer", "Answer", show=_end),
    Column("reason", "Why", show=lambda value: _shorten(value, 80)),
)


@dataclass(frozen=True)
class RolloutPlace:
    row: int
    attempt: int = 0

    @classmethod
    def parse(cls, text: str) -> "RolloutPlace":
        row, slash, attempt = text.partition("/")
        if not (row.isdecimal() and (attempt.isdecimal() or not slash)):
            raise UsageError(f"{text!r} is not a rollout", hint="ROW or ROW/ATTEMPT, counted from 0: 12/1")
        return cls(int(row), int(attempt or 0))

    def __str__(self) -> str:
        return f"{self.row}/{self.attempt}"


def show(
    run: Annotated[
        str | None,
        Argument(help="A run, local or of the platform [default: list local runs].", autocompletion=completion.runs),
    ] = None,
    place: Annotated[
        str | None,
        Argument(metavar="[ROW[/ATTEMPT]]", help="Which rollout [default: the figures, and all, worst first]."),
    ] = None,
    outcome: Annotated[Outcome | None, Option(help="List only these rollouts.")] = None,
    below: Annotated[float | None, Option(help="List only rollouts that scored less than this.")] = None,
    limit: Annotated[int, Option(min=1, help="Number of rollouts to list.")] = LineQuery.limit,
    whole: Annotated[bool, Option(help="Do not shorten long messages.")] = False,
    as_report: Annotated[bool, Option("--report", help="Only the report of a local run.", hidden=True)] = False,
    html: Html = False,
    md: Md = False,
    junit: Junit = False,
    reduce: Reduce = None,
    group_by: GroupBy = None,
    output: ReportFile = None,
) -> Result | int:
    """Show a run, or one rollout: conversation, what was expected, scores with reasons, traceback of what failed.

    --html, --md and --junit write a local run's report as one file; --reduce and --group-by add figures to it.

    Example:
        osmosis eval show nightly
        osmosis eval show nightly --outcome wrong
        osmosis eval show nightly --html
        osmosis eval show nightly 12/2 --whole
        osmosis eval show platform:multiply-3 12
    """
    ctx = current()
    if run is None or any((as_report, html, md, junit, reduce, group_by, output)):
        if place is not None:
            raise UsageError("a report is of a whole run: name no row", hint=f"osmosis eval show {run} --html")
        return report(run, html, md, junit, reduce, group_by, output)
    if place is None:
        return _show_run(ctx, run, LineQuery(limit, outcome, below))
    selector = RolloutPlace.parse(place)
    stored = open_run(RunFinder(ctx), run)
    rollout = stored.find(selector.row, selector.attempt)
    row = find_row(stored, rollout)
    artifacts = stored.artifacts(rollout) if isinstance(stored, LocalRun) else None
    head = f"{run} row {rollout.row_index} attempt {rollout.attempt}, {stored.where}"

    def draw(console: Console) -> None:
        print_text(console, head, "bold")
        draw_rollout(console, rollout, expected=row.ground_truth if row else None, whole=whole)
        if artifacts is not None:
            print_text(console, f"artifacts  {artifacts}")

    again = f"osmosis rollout replay {run} {RolloutPlace(*rollout.place)}"
    steps = [NextStep("run it again with the recorded answers", command=again)]
    data = {"run": run, "rollout": rollout.to_dict(), "row": row.data if row else None, "artifacts": artifacts}
    return DetailResult(data, human=draw, next_steps=steps)


def _show_run(ctx: AppContext, run: str, query: LineQuery) -> ListResult:
    runs = RunFinder(ctx)
    lines, total = list_lines(open_run(runs, run), query)
    steps = [NextStep("one of them", command=f"osmosis eval show {run} {lines[0]['place']}")] if lines else []
    filtered = query.outcome is not None or query.below is not None
    empty = f"run {run} has no such rollout" if filtered else f"run {run} has no rollouts yet"
    more = len(lines) < total
    result = ListResult(lines, COLUMNS, empty=empty, total_count=total, has_more=more, next_steps=steps, more="--limit")
    if ctx.mode is not Mode.RICH or filtered:
        return result
    figures = runs.find(
        run, of_folder=lambda path: report(str(path)), of_platform=lambda _, name: run_info(ctx, "eval", name)
    )

    def draw(console: Console) -> None:
        if isinstance(figures, DetailResult) and figures.human is not None:
            figures.human(console)
            console.print()
        draw_list(console, result)

    return replace(result, human=draw)


_STYLES = {"system": "magenta", "user": "cyan", "assistant": "green", "tool": "yellow"}
_LONG = 4000
WIDEST_PANEL = 1000  # Columns from which on the output is a pipe, in which a frame would only fill lines


def draw_message(console: Console, message: Message, title: str | None = None, *, whole: bool = True) -> None:
    role = str(message.get("role", "unknown"))
    name = f"{role} {message.get('name') or message.get('tool_call_id', '')}".rstrip() if role == "tool" else role
    parts = list(_parts(message, whole=whole))
    if console.width > WIDEST_PANEL:
        console.print(Text(title or name, style="bold"), *parts, "", sep="\n")
        return
    console.print(
        Panel(Group(*parts), title=Text(title or name), title_align="left", border_style=_STYLES.get(role, ""))
    )


def _parts(message: Message, *, whole: bool) -> Iterator[Text]:
    reasoning = get_reasoning(message)
    if reasoning:
        yield Text(f"(thinking) {_cut(reasoning, whole=whole)}", style="dim italic")
    text = text_of(message)
    calls = message.get("tool_calls") or []
    if text or not (calls or reasoning):
        yield Text(_cut(text or "(no text)", whole=whole))
    for image in list_images(message):
        yield Text(f"[image] {clean(image[:100])}", style="dim")
    for call in calls:
        function = call.get("function") or {}
        yield Text(clean(f"-> {function.get('name')}({function.get('arguments')})"), style="bold")
    for source in list_sources(message):
        yield Text(f"[source] {clean(source.title)} {clean(source.url)}", style="dim")


def _cut(text: str, *, whole: bool) -> str:
    if whole or len(text) <= _LONG:
        return clean(text)
    return f"{clean(text[:_LONG])}\n... {len(text) - _LONG:,} more characters: --whole"


def draw_rollout(console: Console, rollout: Rollout, *, expected: str | None = None, whole: bool = False) -> None:
    calls = iter(rollout.calls)
    tools: dict[str, str] = {}
    for message in rollout.messages:
        for tool_call in message.get("tool_calls") or []:
            tools[str(tool_call.get("id"))] = f"tool {(tool_call.get('function') or {}).get('name')}"
        title = tools.get(str(message.get("tool_call_id", "")))
        if message.get("role") == "assistant" and (call := next(calls, None)):
            parts = ["assistant", f"{call.duration_ms / 1000:.1f} s", f"{call.usage.completion_tokens} tokens"]
            parts += [call.finish_reason] if call.finish_reason else []
            parts += [f"{call.retries} retries"] if call.retries else []
            title = ", ".join(parts)
        draw_message(console, message, title, whole=whole)
    if expected is not None:
        console.print(Text("expected  ", style="bold") + Text(clean(expected)))
    for name, score in rollout.scores.items():
        _draw_score(console, name, score)
    for key, value in (("metrics", rollout.metrics), ("info", rollout.info)):
        if value:
            print_text(console, f"{key}  {clean(json.dumps(value, ensure_ascii=False))}", "dim")
    if (failure := rollout.failure) is not None:
        kind = failure_kind(failure.phase, failure.category)
        print_text(console, f"failed, {kind}: {failure.message}", "red")
        if failure.traceback:
            print_text(console, failure.traceback, "dim")
        if failure.fix:
            print_text(console, f"fix: {failure.fix}", "yellow")
    print_text(console, " · ".join(facts(rollout)), "dim")


def _draw_score(console: Console, name: str, score: Score) -> None:
    if score.failure is not None:
        print_text(console, f"{name}  failed: {score.failure.message}", "red")
        if score.failure.traceback:
            print_text(console, score.failure.traceback, "dim")
        return
    console.print(Text.assemble((f"{clean(name)}  ", "bold"), "none" if score.value is None else f"{score.value:g}"))
    for part, number in (score.parts or {}).items():
        print_text(console, f"  {part}  {number:g}")
    if score.reason:
        print_text(console, "  " + clean(score.reason).replace("\n", "\n  "), "dim")


def facts(rollout: Rollout) -> Sequence[str]:
    usage = rollout.usage
    parts = [
        *([rollout.status.value] if rollout.status is not RolloutStatus.SUCCESS else []),
        *([rollout.finish_reason] if rollout.finish_reason else []),
        *([rollout.answer_issue] if rollout.answer_issue else []),
        count_noun(len(rollout.calls), "model call"),
        count_noun(rollout.num_tool_calls, "tool call"),
        f"{usage.prompt_tokens:,} + {usage.completion_tokens:,} tokens",
        *([dollars(usage.cost_usd)] if usage.cost_usd else []),
        f"{rollout.duration_ms / 1000:.1f} s",
    ]
    return [clean(part) for part in parts]


def count_noun(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
