"""A run's report as one file: Markdown, JUnit XML, or HTML with its plots inside."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape

import orjson

from osmosis.base.jsonable import JsonObject
from osmosis.engine.journal import Journal
from osmosis.metrics.compare import Comparison
from osmosis.metrics.figures import Figure, comparison_figures, figures, grouped
from osmosis.metrics.warnings import alarms
from osmosis.records.run.message_parts import SHOWN_IMAGES, get_reasoning, image_url, list_images, list_sources
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.report import Interval, Report
from osmosis.records.run.rollout import LARGEST_SCORE, Message
from osmosis.records.run.rows import DerivedKeys

from .plots import bars, curves, histogram

_QUOTED = 200
MAX_SHOWN = 200

_STYLE = """
:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;margin:1rem 0}th,td{padding:.3rem .8rem;text-align:left;border-bottom:1px solid #8884}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
.plots{display:flex;flex-wrap:wrap;gap:1rem}svg{font:11px system-ui,sans-serif;fill:currentColor}
svg .title{font-weight:600;font-size:12px}svg .axis,svg .ci{stroke:currentColor;fill:none}
details{margin:.3rem 0;border:1px solid #8884;border-radius:6px;padding:.3rem .7rem}summary{cursor:pointer}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.3rem 0;padding:.4rem .6rem;background:#8881;border-radius:4px}
.role{font-weight:600;margin-top:.5rem}.bad{color:#c0392b}.good{color:#2e8b57}.dim{opacity:.7}
.why{white-space:pre-wrap}
"""


def markdown(journal: Journal, plan: EvalPlan, report: Report) -> str:
    lines = [f"# {_md(plan.name)}", ""]
    lines += [f"- **{name}**: {_md(text)}" for name, text in plan.facts()]
    lines += [f"\n> {_md(alarm)}" for alarm in alarms(report, plan.model.name)]
    for group, members in grouped(figures(report)):
        lines += ["", f"## {_md(group or 'Run')}", "", *_md_table(members)]
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


def comparison_markdown(
    a: str, b: str, comparison: Comparison, conclusion: str, flips: Sequence[JsonObject], notes: Sequence[str] = ()
) -> str:
    lines = [f"### {_md(a)} → {_md(b)}: {_md(conclusion)}", "", *_md_table(list(comparison_figures(comparison)))]
    if comparison.rows_differ:
        lines += ["", "Some rows were edited between the runs; interpret the difference with care."]
    lines += ["", *(f"- {_md(note)}" for note in notes)] if notes else []
    if flips:
        lines += ["", f"<details><summary>{comparison.gained} gained, {comparison.lost} lost</summary>", ""]
        lines += ["| row/attempt | | before | after |", "| --- | --- | --- | --- |"]
        for flip in flips:
            answers = [_md(_last(flip[side])[:_QUOTED]) for side in ("transcript_a", "transcript_b")]
            lines.append(f"| {flip['row_index']}/{flip['attempt']} | {flip['kind']} | {answers[0]} | {answers[1]} |")
        lines += ["", "</details>"]
    return "\n".join(lines) + "\n"


def _last(messages: Sequence[Message]) -> str:
    return message_text(messages[-1]) if messages else ""


def _md_table(members: Sequence[Figure]) -> list[str]:
    rows = [f"| {_md(f.label)} | {_md(f.text)} | {f.between} | {_md(f.detail)} |" for f in members]
    return ["| figure | value | 95 % interval | |", "| --- | ---: | --- | --- |", *rows]


def junit(journal: Journal, plan: EvalPlan, report: Report, aside: Mapping[str, str] | None = None) -> str:
    """Write one test case per row and attempt; below the threshold is a failure, no score an error."""
    first = report.scores[0].name if report.scores else None
    cases, failures, errors, skipped = [], 0, 0, 0
    keys = DerivedKeys()
    for line in journal.in_order():
        score = (line.get("scores") or {}).get(first) or {}
        value, inner = score.get("value"), ""
        problem = line.get("failure") or score.get("failure")
        reason = (aside or {}).get(
            keys.of(line.get("row_key"), line["row_index"], (line.get("hashes") or {}).get("row"))
        )
        if reason is not None:
            skipped, inner = skipped + 1, f"<skipped message={_attr(reason)}/>"
        elif line["status"] == "skipped":
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
    properties = "".join(
        f"<property name={_attr(f'{f.group}: {f.label}' if f.group else f.label)} value={_attr(_line(f))}/>"
        for f in figures(report)
    )
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>{head}<properties>{properties}</properties>\n'
        + "\n".join(cases)
        + "</testsuite></testsuites>\n"
    )


def _line(figure: Figure) -> str:
    between = f"[{figure.between}]" if figure.interval else ""
    return " ".join(part for part in (figure.text, between, figure.detail) if part)


def html(journal: Journal, plan: EvalPlan, report: Report) -> str:
    parts = [f"<h1>{escape(plan.name)}</h1>", _facts(plan)]
    parts += [f'<p class="bad">{escape(alarm)}</p>' for alarm in alarms(report, plan.model.name)]
    for group, members in grouped(figures(report)):
        rows = "".join(_figure(figure) for figure in members)
        head = "<tr><th></th><th class=n>value</th><th>95 % interval</th><th></th></tr>"
        parts.append(f"<h2>{escape(group or 'Run')}</h2><table>{head}{rows}</table>")
    parts += ['<div class="plots">', *_plots(journal, report), "</div>"]
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
    rates = [(s.name, s.pass_rate, _bounds(s.pass_rate_interval)) for s in report.scores if s.pass_rate is not None]
    yield bars(rates, "pass rate with 95 % interval")
    for score in report.scores:
        lines = [
            (name, [(float(p.k), p.value, _bounds(p.interval)) for p in points])
            for name, points in (("pass@k", score.pass_at_k), ("pass^k", score.pass_hat_k))
            if points
        ]
        yield curves(lines, f"{score.name}: over attempts", "k")
    yield from _histograms(journal, report)


def _bounds(interval: Interval | None) -> tuple[float, float] | None:
    return None if interval is None else (interval.low, interval.high)


def _histograms(journal: Journal, report: Report) -> Iterator[str]:
    values: dict[str, list[float]] = {score.name: [] for score in report.scores}
    durations, tokens = [], []
    for line in journal.lines():
        for name, score in (line.get("scores") or {}).items():
            value = score.get("value")
            if value is not None and name in values and abs(value) <= LARGEST_SCORE:
                values[name].append(value)
        durations.append(line.get("duration_ms") or 0.0)
        usage = line.get("usage") or {}
        tokens.append(float(usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0)))
    for name, numbers in values.items():
        yield histogram(numbers, f"{name}: scores")
    yield histogram(durations, "duration of a rollout", unit=" ms")
    yield histogram(tokens, "tokens of a rollout")


def _rollouts(journal: Journal, plan: EvalPlan, report: Report) -> Iterator[str]:
    first = report.scores[0].name if report.scores else None
    good: list[dict[str, object]] = []
    count = 0
    for line in journal.in_order():
        if _passed(line, first, plan.pass_threshold):
            if len(good) < MAX_SHOWN:
                good.append(line)
        elif count < MAX_SHOWN:
            count += 1
            yield _rollout(line, passed=False)
    for line in good[: MAX_SHOWN - count]:
        count += 1
        yield _rollout(line, passed=True)
    if count < report.completed:
        where = escape(str(journal.rollouts_path))
        yield f'<p class="dim">{count} of {report.completed} shown; all of them are in {where}</p>'


def _passed(line: JsonObject, name: str | None, threshold: float) -> bool:
    value = ((line.get("scores") or {}).get(name) or {}).get("value")
    return value is not None and value >= threshold


def _rollout(line: JsonObject, *, passed: bool) -> str:
    scores = line.get("scores") or {}
    scores_text = ", ".join(
        f"{name} = {score['value']:g}" if score.get("value") is not None else f"{name}: no score"
        for name, score in scores.items()
    )
    failure = line.get("failure")
    if failure:
        scores_text = f"{failure['phase']}/{failure['category']}: {failure['message'][:120]}"
    mark = '<span class="good">pass</span>' if passed else '<span class="bad">no pass</span>'
    body = [f"<pre>{escape(failure['message'])}\n{escape(failure.get('traceback') or '')}</pre>"] if failure else []
    for name, score in scores.items():
        reason = score.get("reason") or (score.get("failure") or {}).get("message")
        if reason:
            body.append(f'<div class="dim">{escape(name)}: <span class="why">{escape(reason)}</span></div>')
        if score.get("parts"):
            made_of = ", ".join(f"{part} {value:g}" for part, value in score["parts"].items())
            body.append(f'<div class="dim">{escape(name)}: {escape(made_of)}</div>')
        if score.get("metadata"):
            metadata = orjson.dumps(score["metadata"]).decode()
            body.append(f"<details><summary>{escape(name)}: metadata</summary><pre>{escape(metadata)}</pre></details>")
    for message in line.get("messages") or []:
        body.append(_message(message))
    head = f"row {line['row_index']} attempt {line['attempt']}"
    return f"<details><summary>{head} {mark} {escape(scores_text)}</summary>{''.join(body)}</details>"


def _message(message: JsonObject) -> str:
    parts = [f'<div class="role">{escape(str(message.get("role")))}</div>']
    if thought := get_reasoning(message):
        parts.append(f"<details><summary>reasoning</summary><pre>{escape(thought)}</pre></details>")
    parts.append(f"<pre>{escape(message_text(message))}</pre>")
    images = [url for url in list_images(message) if url.startswith(SHOWN_IMAGES)]
    parts += [f'<img src="{escape(url, quote=True)}" alt="image of this message" width="320">' for url in images]
    if sources := list_sources(message):
        named = ", ".join(escape(f"{source.title} {source.url}".strip()) for source in sources)
        parts.append(f'<div class="dim">sources: {named}</div>')
    return "".join(parts)


def message_text(message: JsonObject) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(map(_part_text, content))
    lines = [str(content)] if content else []
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        lines.append(f"{function.get('name')}({function.get('arguments')})")
    return "\n".join(lines)


def _part_text(part: object) -> str:
    if url := image_url(part):
        return "[image]" if url.startswith(SHOWN_IMAGES) else f"[image: {url[:200]}]"
    return str(part.get("text", part)) if isinstance(part, dict) else str(part)


def _facts(plan: EvalPlan) -> str:
    rows = "".join(
        f'<tr><td class="dim">{escape(name)}</td><td>{escape(text)}</td></tr>' for name, text in plan.facts()
    )
    return f"<table>{rows}</table>"


def _figure(figure: Figure) -> str:
    help_text = f' title="{escape(figure.help)}"' if figure.help else ""
    return (
        f'<tr{help_text}><td>{escape(figure.label)}</td><td class="n">{escape(figure.text)}</td>'
        f'<td>{escape(figure.between)}</td><td class="dim">{escape(figure.detail)}</td></tr>'
    )


def _attr(text: str) -> str:
    from xml.sax.saxutils import quoteattr  # brings urllib.request along

    return quoteattr("".join(c for c in text if c in "\t\n" or c >= " "))


def _md(text: str) -> str:
    flat = " ".join(text.split())
    return "".join("\\" + c if c in "\\`*_[]<>|#" else c for c in flat)
