import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson

from osmosis.base.jsonable import JsonObject
from osmosis.engine.journal import Journal
from osmosis.metrics.compare import Comparison
from osmosis.metrics.figures import Figure, comparison_figures, figures, grouped
from osmosis.metrics.warnings import alarms
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import LARGEST_SCORE, SHOWN_IMAGES, get_reasoning, image_url, list_images, list_sources
from osmosis.records.run.rows import DerivedKeys

_QUOTED = 200
MAX_SHOWN = 200
BINS = 20


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
            lasts = ("".join(map(message_text, flip[side][-1:])) for side in ("transcript_a", "transcript_b"))
            answers = [_md(last[:_QUOTED]) for last in lasts]
            lines.append(f"| {flip['row_index']}/{flip['attempt']} | {flip['kind']} | {answers[0]} | {answers[1]} |")
        lines += ["", "</details>"]
    return "\n".join(lines) + "\n"


def _md_table(members: Sequence[Figure]) -> list[str]:
    rows = [f"| {_md(f.label)} | {_md(f.text)} | {f.between} | {_md(f.detail)} |" for f in members]
    return ["| figure | value | 95 % interval | |", "| --- | ---: | --- | --- |", *rows]


def junit(journal: Journal, plan: EvalPlan, report: Report, aside: Mapping[str, str] | None = None) -> str:
    """Write one test case per row and attempt; below the threshold is a failure, no score an error."""
    first = report.scores[0].name if report.scores else None
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(root, "testsuite", name=_text(plan.name), time=f"{report.duration_ms / 1000:.3f}")
    properties = ElementTree.SubElement(suite, "properties")
    for f in figures(report):
        text = " ".join(part for part in (f.text, (f"[{f.between}]" if f.interval else ""), f.detail) if part)
        name = f"{f.group}: {f.label}" if f.group else f.label
        ElementTree.SubElement(properties, "property", name=_text(name), value=_text(text))
    counts: Counter[str] = Counter()
    keys = DerivedKeys()
    for line in journal.in_order():
        counts["tests"] += 1
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=_text(plan.name),
            name=f"row {line['row_index']} attempt {line['attempt']}",
            time=f"{(line.get('duration_ms') or 0) / 1000:.3f}",
        )
        score = (line.get("scores") or {}).get(first) or {}
        value = score.get("value")
        problem = line.get("failure") or score.get("failure")
        reason = (aside or {}).get(
            keys.of(line.get("row_key"), line["row_index"], (line.get("hashes") or {}).get("row"))
        )
        if reason is not None or line["status"] == "skipped":
            counts["skipped"] += 1
            ElementTree.SubElement(case, "skipped", {} if reason is None else {"message": _text(reason)})
        elif problem:
            counts["errors"] += 1
            kind = f"{problem['phase']}/{problem['category']}"
            ElementTree.SubElement(case, "error", type=kind, message=_text(problem["message"]))
        elif value is not None and value < plan.pass_threshold:
            counts["failures"] += 1
            ElementTree.SubElement(case, "failure", message=f"{first} = {value:g}, below {plan.pass_threshold:g}")
    for name in ("tests", "failures", "errors", "skipped"):
        suite.set(name, str(counts[name]))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _text(text: str) -> str:
    return "".join(c for c in text if c in "\t\n" or c >= " ")  # XML has no other control characters


def html(journal: Journal, plan: EvalPlan, report: Report) -> str:
    from jinja2 import Environment, FileSystemLoader  # every run imports this module, and few write a page

    templates = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True)
    templates.globals.update(
        colours=("#2f6f9f", "#c2703d", "#4d8f5b", "#8b5fa8", "#9a8430"),
        count_bins=count_bins,
        get_reasoning=get_reasoning,
        list_images=list_images,
        list_sources=list_sources,
        message_text=message_text,
        shown_images=SHOWN_IMAGES,
        to_json=lambda value: orjson.dumps(value).decode(),
    )
    return templates.get_template("report.html").render(
        plan=plan,
        report=report,
        alarms=alarms(report, plan.model.name),
        groups=grouped(figures(report)),
        histograms=_histograms(journal, report),
        rollouts=_rollouts(journal, plan, report),
        rollouts_path=journal.rollouts_path,
    )


def _histograms(journal: Journal, report: Report) -> list[tuple[str, str, list[float]]]:
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
    scores = [(f"{name}: scores", "", numbers) for name, numbers in values.items()]
    return [*scores, ("duration of a rollout", " ms", durations), ("tokens of a rollout", "", tokens)]


def count_bins(values: Sequence[float]) -> tuple[float, float, list[int]]:
    low, high = min(values), max(values)
    if high == low:
        return low, 1.0, [len(values)]
    width = (high - low) / BINS
    counts = [0] * BINS
    for value in values:
        counts[min(BINS - 1, int((value - low) / width))] += 1
    return low, width, counts


def _rollouts(journal: Journal, plan: EvalPlan, report: Report) -> list[tuple[JsonObject, bool]]:
    first = report.scores[0].name if report.scores else None
    examples: dict[bool, list[tuple[JsonObject, bool]]] = {False: [], True: []}
    for line in journal.in_order():
        value = ((line.get("scores") or {}).get(first) or {}).get("value")
        passed = value is not None and value >= plan.pass_threshold
        if len(examples[passed]) < MAX_SHOWN:
            examples[passed].append((line, passed))
    return [*examples[False], *examples[True]][:MAX_SHOWN]


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


def _md(text: str) -> str:
    return "".join("\\" + c if c in "\\`*_[]<>|#" else c for c in " ".join(text.split()))
