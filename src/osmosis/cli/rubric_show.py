"""How people see rubric runs and rubric files. Draws what it is given; text from files and judges is never markup."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from osmosis.base.json_types import JsonObject
from osmosis.engine.rubrics.rubric_run import RubricJob

from .drawing import Canvas, Line
from .results import clean

_STATISTICS = ("average", "variance", "stdev", "min", "max")


def draw_report(console: Canvas, report: JsonObject, job: RubricJob, target: Path) -> None:
    """Header, one block per record, the summary, the baseline, where the report is."""
    _say(console, f"Rubric {report['rubric_id']}", "bold")
    _say(console, f"  {report['rubric_source']}, judge {report['provider']}/{report['model']}", "dim")
    _say(console, f"  {len(job.records)} records, {report['number']} judgement(s) each")
    for record in report["records"]:
        console.print()
        _say(console, f"{record['conversation_id']}", "bold")
        for run in record["runs"]:
            _draw_run(console, run)
    overall = report["overall_statistics"]
    if overall["total_runs"] > 1 or overall["failure_count"]:
        console.print()
        _say(console, f"{overall['total_runs']} judgements: {_counts(overall)}", "bold")
        for key in _STATISTICS if overall["success_count"] else ():
            digits = 6 if key == "variance" else 4
            _say(console, f"  {key:<9}{overall[key]:.{digits}f}")
    usage = report.get("usage") or {}
    if usage.get("prompt_tokens"):
        cost = f", ${usage['cost_usd']:.4f}" if usage.get("cost_usd") is not None else ", price unknown"
        _say(console, f"  tokens   {usage['prompt_tokens']:,} in, {usage['completion_tokens']:,} out{cost}", "dim")
    comparison = report.get("baseline_comparison")
    if comparison:
        _say(console, f"Baseline {comparison['source_path']}", "bold")
        for key, value in comparison["baseline_statistics"].items():
            delta = comparison["delta_statistics"][key]
            _say(console, f"  {key} baseline={value:.4f} current={overall[key]:.4f} delta={delta:+.4f}")
    console.print()
    _say(console, f"Report: {target}")


def _draw_run(console: Canvas, run: JsonObject) -> None:
    good = run["status"] == "success" and run["score"] is not None
    head = f"  Run {run['run_index']:02d} [{run['status'].upper()}]"
    took = f"{run['duration_seconds']:.2f}s"
    if good:
        _say(console, f"{head} score {run['score']:.4f} ({took})", "green")
    else:
        _say(console, f"{head} {run['error'] or 'no score'} ({took})", "red")
    if run.get("preview"):
        _say(console, f"    text: {run['preview']}", "dim")
    if run.get("explanation"):
        _say(console, f"    why:  {run['explanation']}")


def _counts(overall: Mapping[str, object]) -> str:
    parts = [f"{overall['success_count']} scored"]
    if overall["failure_count"]:
        parts.append(f"{overall['failure_count']} failed")
    return ", ".join(parts)


def draw_records(console: Canvas, file: Path, rows: Sequence[Mapping[str, object]], total: int) -> None:
    """Each record as indented JSON."""
    _say(console, f"Loaded {total} JSONL record(s) from {file}", "bold")
    for row in rows:
        console.print()
        _say(console, f"JSONL record #{row['index']}", "bold")
        _say(console, json.dumps(row["record"], ensure_ascii=False, indent=2))
    _rest(console, len(rows), total)


def draw_rubrics(console: Canvas, file: Path, rows: Sequence[Mapping[str, object]], total: int) -> None:
    """Each rubric as YAML."""
    _say(console, f"Loaded {total} rubric config(s) from {file}", "bold")
    for row in rows:
        console.print()
        _say(console, f"Rubric config #{row['index']} ({row['label']})", "bold")
        text = yaml.dump(row["config"], Dumper=_Blocks, allow_unicode=True, sort_keys=False, width=100)
        _say(console, text.rstrip())
    _rest(console, len(rows), total)


class _Blocks(yaml.SafeDumper):
    """Multi-line text as a literal block."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Blocks.add_representer(str, _text)


def _rest(console: Canvas, shown: int, total: int) -> None:
    if shown < total:
        console.print()
        _say(console, f"... and {total - shown} more", "dim")


def _say(console: Canvas, text: str, style: str = "") -> None:
    console.print(Line(clean(text), style=style))
