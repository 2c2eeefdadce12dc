"""A run's report as one file: Markdown, JUnit XML, or HTML with its plots inside. Reads the journal and the report;
computes no figure of its own, and no text of a rollout is ever taken for markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import Any

from osmosis.records.plan import EvalPlan
from osmosis.records.report import Interval, Report, ScoreReport

from .journal import Journal
from .plots import bars, curves, histogram
from .results import sorted_lines

MAX_SHOWN = 200
"""Conversations in an HTML report: failed and lost ones first."""

_STYLE = """
:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;margin:1rem 0}th,td{padding:.3rem .8rem;text-align:left;border-bottom:1px solid #8884}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
.plots{display:flex;flex-wrap:wrap;gap:1rem}svg{font:11px system-ui,sans-serif;fill:currentColor}
svg .title{font-weight:600;font-size:12px}svg .axis,svg .ci{stroke:currentColor;fill:none}
details{margin:.3rem 0;border:1px solid #8884;border-radius:6px;padding:.3rem .7rem}summary{cursor:pointer}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.3rem 0;padding:.4rem .6rem;background:#8881;border-radius:4px}
.role{font-weight:600;margin-top:.5rem}.bad{color:#c0392b}.good{color:#2e8b57}.dim{opacity:.7}
"""


def number(value: float | None, digits: int = 4) -> str:
    return "-" if value is None else f"{value:.{digits}g}" if abs(value) < 1e6 else f"{value:,.0f}"


def between(interval: Interval | None) -> str:
    return f"[{interval.low:.3f}, {interval.high:.3f}]" if interval else ""


def facts(plan: EvalPlan, report: Report) -> Iterator[tuple[str, str]]:
    """What the run was, in pairs of name and text."""
    yield "model", plan.model.name + (f" at {plan.model.base_url}" if plan.model.base_url else "")
    yield "agent", plan.agent
    yield "dataset", plan.dataset + (f" (sha256 {plan.dataset_hash[:12]})" if plan.dataset_hash else "")
    yield "rollouts", f"{report.completed} of {report.total} ({report.rows} rows x {report.attempts})"
    yield "coverage", f"{report.coverage:.1%} with a score"
    yield "failed", f"{report.failed}, skipped {report.skipped}"
    yield "tokens", f"{report.usage.total_tokens:,} (judges {report.judge_usage.total_tokens:,})"
    cost = report.usage.cost_usd
    yield "cost", "unknown" if cost is None else f"{cost:.4f} USD"
    yield "duration", f"{report.duration_ms / 1000:.1f} s"
    if report.latency_ms:
        yield "rollout latency", f"median {report.latency_ms.median:.0f} ms, p99 {report.latency_ms.p99:.0f} ms"
    if report.stopped:
        yield "stopped", report.stopped
    commit = (plan.provenance.get("git") or {}).get("commit")
    if commit:
        yield "commit", commit[:12] + (" with uncommitted changes" if plan.provenance["git"].get("dirty") else "")


def score_rows(score: ScoreReport) -> Iterator[tuple[str, str, str]]:
    """The figures of one score: name, value, interval."""
    yield "mean (failures as 0)", number(score.mean), between(score.mean_interval)
    yield "mean over scored", number(score.mean_scored), ""
    yield "median", number(score.median), ""
    yield "std", number(score.std), ""
    yield "pass rate", number(score.pass_rate), between(score.pass_rate_interval)
    for point in score.pass_at_k:
        yield f"pass@{point.k}", number(point.value), between(point.interval)
    for point in score.pass_hat_k:
        yield f"pass^{point.k}", number(point.value), between(point.interval)
    if score.flake_rate is not None:
        yield "flaky rows", f"{score.flake_rate:.1%}", ""
    yield "scored / failed", f"{score.scored} / {score.failed}", ""


def markdown(journal: Journal, plan: EvalPlan, report: Report) -> str:
    """For a pull request or a notebook."""
    lines = [f"# {_md(plan.name)}", ""]
    lines += [f"- **{name}**: {_md(text)}" for name, text in facts(plan, report)]
    for score in report.scores:
        lines += ["", f"## {_md(score.name)}", "", "| figure | value | 95 % interval |", "| --- | ---: | --- |"]
        lines += [f"| {name} | {value} | {interval} |" for name, value, interval in score_rows(score)]
    if report.failures:
        lines += [
            "",
            "## Failures",
            "",
            "| phase | category | count | example | rows |",
            "| --- | --- | ---: | --- | --- |",
        ]
        lines += [
            f"| {f.phase.value} | {f.category.value} | {f.count} | {_md(f.example[:120])} | "
            f"{', '.join(map(str, f.rows))} |"
            for f in report.failures
        ]
    return "\n".join(lines) + "\n"


def junit(journal: Journal, plan: EvalPlan, report: Report) -> str:
    """One test case per row and attempt; below the threshold is a failure, no score an error."""
    first = report.scores[0].name if report.scores else None
    cases, failures, errors, skipped = [], 0, 0, 0
    for line in sorted_lines(journal):
        score = (line.get("scores") or {}).get(first) or {}
        value, inner = score.get("value"), ""
        problem = line.get("failure") or score.get("failure")
        if line["status"] == "skipped":
            skipped, inner = skipped + 1, "<skipped/>"
        elif problem:
            errors += 1
            kind = f"{problem['phase']}/{problem['category']}"
            inner = f"<error type={_attr(kind)} message={_attr(problem['message'])}/>"
        elif value is not None and value < plan.pass_threshold:
            failures += 1
            inner = f"<failure message={_attr(f'{first} = {value:g}, below {plan.pass_threshold:g}')}/>"
        name = f"row {line['row_index']} attempt {line['attempt']}"
        seconds = (line.get("duration_ms") or 0) / 1000
        cases.append(
            f'<testcase classname={_attr(plan.name)} name={_attr(name)} time="{seconds:.3f}">{inner}</testcase>'
        )
    head = (
        f'<testsuite name={_attr(plan.name)} tests="{len(cases)}" failures="{failures}" errors="{errors}" '
        f'skipped="{skipped}" time="{report.duration_ms / 1000:.3f}">'
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>' + head + "\n".join(cases) + "</testsuite></testsuites>\n"
    )


def html(journal: Journal, plan: EvalPlan, report: Report) -> str:
    """One file that needs nothing else: figures, plots, failures, conversations."""
    parts = [
        f"<h1>{escape(plan.name)}</h1>",
        _table(facts(plan, report)),
        '<div class="plots">',
        *_plots(journal, report),
    ]
    parts.append("</div>")
    for score in report.scores:
        rows = "".join(
            f'<tr><td>{escape(name)}</td><td class="n">{value}</td><td>{interval}</td></tr>'
            for name, value, interval in score_rows(score)
        )
        parts.append(f"<h2>{escape(score.name)}</h2><table>{rows}</table>")
    if report.failures:
        rows = "".join(
            f'<tr><td>{f.phase.value}</td><td>{f.category.value}</td><td class="n">{f.count}</td>'
            f"<td>{escape(f.example[:300])}</td><td>{', '.join(map(str, f.rows))}</td></tr>"
            for f in report.failures
        )
        head = "<tr><th>phase</th><th>category</th><th class=n>count</th><th>example</th><th>rows</th></tr>"
        parts.append(f"<h2>Failures</h2><table>{head}{rows}</table>")
    parts += ["<h2>Rollouts</h2>", *_rollouts(journal, plan, report)]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(plan.name)}</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _plots(journal: Journal, report: Report) -> Iterator[str]:
    rates = [
        (s.name, s.pass_rate, (i.low, i.high) if (i := s.pass_rate_interval) else None)
        for s in report.scores
        if s.pass_rate is not None
    ]
    yield bars(rates, "pass rate with 95 % interval")
    for score in report.scores:
        lines = [
            (name, [(float(p.k), p.value, (p.interval.low, p.interval.high) if p.interval else None) for p in points])
            for name, points in (("pass@k", score.pass_at_k), ("pass^k", score.pass_hat_k))
            if points
        ]
        yield curves(lines, f"{score.name}: over attempts", "k")
    values: dict[str, list[float]] = {score.name: [] for score in report.scores}
    durations, tokens = [], []
    for line in journal.lines():
        for name, score in (line.get("scores") or {}).items():
            if score.get("value") is not None and name in values:
                values[name].append(score["value"])
        durations.append(line.get("duration_ms") or 0.0)
        usage = line.get("usage") or {}
        tokens.append(float(usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0)))
    for name, found in values.items():
        yield histogram(found, f"{name}: scores")
    yield histogram(durations, "duration of a rollout", unit=" ms")
    yield histogram(tokens, "tokens of a rollout")


def _rollouts(journal: Journal, plan: EvalPlan, report: Report) -> Iterator[str]:
    first = report.scores[0].name if report.scores else None
    good: list[dict[str, Any]] = []
    shown = 0
    for line in sorted_lines(journal):
        if _passed(line, first, plan.pass_threshold):
            if len(good) < MAX_SHOWN:
                good.append(line)
        elif shown < MAX_SHOWN:
            shown += 1
            yield _rollout(line, passed=False)
    for line in good[: MAX_SHOWN - shown]:
        shown += 1
        yield _rollout(line, passed=True)
    if shown < report.completed:
        where = escape(str(journal.rollouts_path))
        yield f'<p class="dim">{shown} of {report.completed} shown; all of them are in {where}</p>'


def _passed(line: dict[str, Any], name: str | None, threshold: float) -> bool:
    value = ((line.get("scores") or {}).get(name) or {}).get("value")
    return value is not None and value >= threshold


def _rollout(line: dict[str, Any], *, passed: bool) -> str:
    scores = line.get("scores") or {}
    said = ", ".join(
        f"{name} = {score['value']:g}" if score.get("value") is not None else f"{name}: no score"
        for name, score in scores.items()
    )
    failure = line.get("failure")
    if failure:
        said = f"{failure['phase']}/{failure['category']}: {failure['message'][:120]}"
    mark = '<span class="good">pass</span>' if passed else '<span class="bad">no pass</span>'
    body = [f"<pre>{escape(failure['message'])}\n{escape(failure.get('traceback') or '')}</pre>"] if failure else []
    for name, score in scores.items():
        why = score.get("reason") or (score.get("failure") or {}).get("message")
        if why:
            body.append(f'<div class="dim">{escape(name)}: {escape(why)}</div>')
    for message in line.get("messages") or []:
        body.append(
            f'<div class="role">{escape(str(message.get("role")))}</div><pre>{escape(message_text(message))}</pre>'
        )
    head = f"row {line['row_index']} attempt {line['attempt']}"
    return f"<details><summary>{head} {mark} {escape(said)}</summary>{''.join(body)}</details>"


def message_text(message: dict[str, Any]) -> str:
    """A message's content and tool calls as text."""
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(str(p.get("text", p)) if isinstance(p, dict) else str(p) for p in content)
    lines = [str(content)] if content else []
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        lines.append(f"{function.get('name')}({function.get('arguments')})")
    return "\n".join(lines)


def _table(pairs: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f'<tr><td class="dim">{escape(name)}</td><td>{escape(text)}</td></tr>' for name, text in pairs)
    return f"<table>{rows}</table>"


def _attr(text: str) -> str:
    from xml.sax.saxutils import quoteattr  # brings urllib.request along

    return quoteattr("".join(c for c in text if c in "\t\n" or c >= " "))


def _md(text: str) -> str:
    """Plain text that Markdown shows as it is."""
    flat = " ".join(text.split())
    return "".join("\\" + c if c in "\\`*_[]<>|#" else c for c in flat)
