"""`osmosis eval-rubric`, `eval rubric` and `preview`; a run exits with 1 when every judgement failed."""

import asyncio
import json
import math
import os
import re
import shlex
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import yaml
from rich.console import Console
from typer import Option

from osmosis.base.jsonable import JsonObject
from osmosis.base.paths import cache_dir
from osmosis.cli.core.context import AppContext, current
from osmosis.cli.core.render import print_text
from osmosis.cli.core.results import Column, DetailResult, ListResult, NextStep, Result, clean
from osmosis.engine.loader import load_object
from osmosis.engine.rubrics import rubric_run
from osmosis.engine.rubrics.conversations import load_rubric_records, read_json_lines, read_text
from osmosis.engine.rubrics.rubric_files import RubricConfig, load_rubric_configs, load_rubric_suite
from osmosis.engine.rubrics.rubric_report import STATISTICS, Baseline, build_report, write_json
from osmosis.errors import UsageError, ValidationError
from osmosis.sdk.judge_model import info_of, resolve_judge

CONFIG_NAME = "rubric_configs.yaml"
_PREVIEWED = (".yaml", ".yml", ".jsonl")

DataOption = Annotated[str, Option("--data", "-d", help="JSONL file with one conversation per line.")]
NumberOption = Annotated[int, Option("--number", "-n", min=1, help="Judgements per conversation.")]
OutputOption = Annotated[str | None, Option("--output", "-o", help="Write the report to this file or folder.")]
ConcurrencyOption = Annotated[int, Option(min=1, help="Maximum number of concurrent judgements.")]
ResumeOption = Annotated[bool, Option(help="Go on from the judgements in -o FILE, and keep them when interrupted.")]
TimeoutOption = Annotated[float | None, Option(help="Time limit of one judgement, in seconds, retries included.")]


def eval_rubric(
    rubric: Annotated[str, Option("--rubric", "-r", help="Id of the rubric in the config file.")],
    data: DataOption,
    config: Annotated[
        str | None,
        Option("--config", "-c", help=f"Rubric file [default: {CONFIG_NAME} beside the data or in the current folder]"),
    ] = None,
    number: NumberOption = 1,
    output: OutputOption = None,
    baseline: Annotated[str | None, Option("--baseline", "-b", help="Earlier report to compare with.")] = None,
    rubric_fn: Annotated[str | None, Option(help="Custom @osmosis_rubric function: module:name.")] = None,
    concurrency: ConcurrencyOption = 8,
    resume: ResumeOption = False,
    timeout: TimeoutOption = None,
) -> Result:
    """Judge conversations with a rubric from a rubric file.

    Example:
        osmosis eval-rubric --rubric support_followup --data conversations.jsonl
        osmosis eval-rubric -r tone -d data.jsonl -n 3 -o out/tone.json --baseline old.json
        osmosis eval-rubric -r tone -d data.jsonl --rubric-fn my_rubrics:judge_tone
    """
    ctx = current()
    if not rubric.strip():
        raise UsageError("--rubric is empty", hint="give the id of a rubric in the config file")
    data_path = _existing(ctx, data, "--data")
    config_path = _find_config(ctx, config, data_path)
    suite = load_rubric_suite(config_path)
    for warning in suite.warnings:
        ctx.output.warn("RUBRIC_FILE", warning)
    chosen = suite.get(rubric.strip())
    function = _load_function(ctx, rubric_fn) if rubric_fn else None
    if function is None:
        resolve_judge(chosen.model_info, environ=ctx.environ)
    records = load_rubric_records(data_path, chosen.id)
    compared = Baseline.read(ctx.path(baseline)) if baseline else None
    target = _target(ctx, output, chosen.id)
    job = rubric_run.RubricJob(chosen, records, number, concurrency, function, timeout, ctx.environ)
    runs = _judge(ctx, job, target, resume=resume and _resumable(output, target))
    report = build_report(job, runs, config_path=config_path, data_path=data_path, baseline=compared)
    if output is None or not Path(output).suffix:
        report["output_identifier"] = target.stem.rpartition("_")[2]
    write_json(target, report)
    again = ["osmosis eval-rubric -r", chosen.id, "-d", data, "-c", str(config_path), "-n", str(number)]
    return _result(report, job, target, [*again, *(["--rubric-fn", rubric_fn] if rubric_fn else [])])


def rubric(
    data: DataOption,
    rubric: Annotated[str, Option("--rubric", "-r", help="The rubric's text, @file, or FILE.yaml#ID.")],
    model: Annotated[str | None, Option(help="The judge: provider/model [of FILE.yaml#ID: the file's].")] = None,
    number: NumberOption = 1,
    output: OutputOption = None,
    api_key: Annotated[str | None, Option(help="API key (others see it; prefer --api-key-env).", hidden=True)] = None,
    api_key_env: Annotated[str | None, Option(help="Environment variable with the API key.")] = None,
    base_url: Annotated[str | None, Option(help="OpenAI-compatible endpoint that serves the judge.")] = None,
    timeout: TimeoutOption = None,
    score_min: Annotated[float, Option(help="Lowest score.")] = 0.0,
    score_max: Annotated[float, Option(help="Highest score.")] = 1.0,
    concurrency: ConcurrencyOption = 8,
    resume: ResumeOption = False,
) -> Result:
    """Judge recorded conversations with a rubric, given as text or by its id in a rubric file.

    Example:
        osmosis eval rubric -d conversations.jsonl -r "Names the capital." --model openai/gpt-5-mini
        osmosis eval rubric -d rollouts.jsonl -r @rubric.txt --model judge --base-url http://127.0.0.1:8000/v1
        osmosis eval rubric -d conversations.jsonl -r rubric_configs.yaml#support_followup
    """
    ctx = current()
    file, _, identifier = rubric.rpartition("#")
    if file.endswith((".yaml", ".yml")):
        return eval_rubric(identifier, data, file, number, output, None, None, concurrency, resume, timeout)
    if model is None:
        raise UsageError("missing option --model", hint="--model openai/gpt-5-mini")
    data_path = _existing(ctx, data, "--data")
    source = str(_existing(ctx, rubric[1:], "--rubric")) if rubric.startswith("@") else "command line"
    text = read_text(Path(source)) if rubric.startswith("@") else rubric
    if not text.strip():
        raise ValidationError("the rubric is empty", hint="give its text, or @file")
    if not (math.isfinite(score_min) and math.isfinite(score_max) and score_min < score_max):
        raise UsageError(f"--score-max must be greater than --score-min, got {score_min:g} to {score_max:g}")
    if not model.strip():
        raise UsageError("--model is empty", hint="write provider/model, such as openai/gpt-5-mini")
    info: dict[str, object] = dict(info_of(model, base_url))
    info |= {key: value for key, value in {"api_key": api_key, "api_key_env": api_key_env}.items() if value}
    if api_key:
        ctx.output.warn("API_KEY_VISIBLE", "--api-key is visible to others on this machine; use --api-key-env NAME")
    resolve_judge(info, environ=ctx.environ)
    config = RubricConfig("rubric", text, info, score_min, score_max, source_label=source)
    records = load_rubric_records(data_path)
    target = _target(ctx, output, "rubric")
    job = rubric_run.RubricJob(config, records, number, concurrency, None, timeout, ctx.environ)
    runs = _judge(ctx, job, target, resume=resume and _resumable(output, target))
    report = build_report(job, runs, config_path=Path(source), data_path=data_path)
    write_json(target, report)
    again = ["osmosis eval rubric -d", data, "-r", rubric, "--model", model, "-n", str(number)]
    return _result(report, job, target, again, fail_on_any=True)


def preview(
    path: Annotated[str, Option("--path", "-p", help="A .yaml, .yml or .jsonl file.")],
    limit: Annotated[int | None, Option(min=1, help="Show only the first N.")] = None,
) -> Result:
    """Show the rubrics of a YAML file, or the records of a JSONL file.

    Example:
        osmosis preview --path rubric_configs.yaml
        osmosis preview -p conversations.jsonl --limit 3
    """
    ctx = current()
    file = _existing(ctx, path, "--path")
    if file.suffix.lower() not in _PREVIEWED:
        raise ValidationError(f"{file}: cannot preview {file.suffix or 'this'}; it must end in {', '.join(_PREVIEWED)}")
    if file.suffix.lower() == ".jsonl":
        return _preview_records(file, limit)
    return _preview_rubrics(ctx, file, limit)


def _existing(ctx: AppContext, value: str, option: str) -> Path:
    path = ctx.path(value)
    if not path.exists():
        raise ValidationError(f"{option}: there is no file {path}")
    if path.is_dir():
        raise ValidationError(f"{option}: {path} is a folder, not a file")
    return path


def _find_config(ctx: AppContext, config: str | None, data: Path) -> Path:
    if config is not None:
        return _existing(ctx, config, "--config")
    tried = [data.parent / CONFIG_NAME, ctx.cwd / CONFIG_NAME, ctx.cwd / "examples" / CONFIG_NAME]
    for path in tried:
        if path.is_file():
            return path
    message = f"no rubric file found; looked for {', '.join(str(path) for path in dict.fromkeys(tried))}"
    raise ValidationError(message, hint="give its path: --config path/to/rubrics.yaml")


def _load_function(ctx: AppContext, path: str) -> Callable[..., object]:
    # A person's function reads its keys from the process: what the env file says has to be there.
    for name, value in ctx.environ.items():
        os.environ.setdefault(name, value)
    function = load_object(path, ctx.cwd)
    if not callable(function):
        raise ValidationError(f"--rubric-fn {path} is {type(function).__name__}, not a function")
    return function


def _target(ctx: AppContext, output: str | None, rubric_id: str) -> Path:
    if output is None:
        slug = re.sub(r"[^A-Za-z0-9_-]+", "_", rubric_id).strip("_").lower() or "rubric"
        folder = cache_dir(ctx.environ) / "eval_result" / slug
    else:
        path = ctx.path(output)
        if path.suffix:
            if path.is_dir():
                raise ValidationError(f"--output: {path} is a folder", hint="name a file in it, or drop the ending")
            return path
        folder = path
    stamp = int(time.time())
    while (file := folder / f"rubric_eval_result_{stamp}.json").exists():
        stamp += 1
    return file


def _resumable(output: str | None, target: Path) -> bool:
    if output is None or not Path(output).suffix:
        raise UsageError("--resume needs the report file of the run to resume", hint="-o path/to/report.json")
    rubric_run.check_resumable(target)
    return True


def _judge(ctx: AppContext, job: rubric_run.RubricJob, target: Path, *, resume: bool) -> list[rubric_run.RubricRun]:
    folder = rubric_run.runs_folder(target)
    done = rubric_run.judged_already(job, folder) if resume else 0
    if done:
        ctx.output.say(f"{done} of {job.total} judgements are already done")
    try:
        with ctx.output.bar("judging", job.total, done=done) as advance:
            runs = asyncio.run(rubric_run.run_rubric(job, folder, resume=resume, on_run=lambda _: advance(1)))
    except KeyboardInterrupt:
        if resume:
            done = rubric_run.judged_already(job, folder)
            text = f"{done} of {job.total} judgements are saved; continue with: --resume -o {target}"
        else:
            rubric_run.remove_run(target)
            text = "nothing is saved; with --resume -o FILE, what is judged would be kept"
        ctx.output.say(text, style="yellow")
        raise
    if not resume and all(run.scored for run in runs):
        rubric_run.remove_run(target)  # there is nothing to resume
    return runs


def _result(
    report: JsonObject, job: rubric_run.RubricJob, target: Path, again: list[str], *, fail_on_any: bool = False
) -> DetailResult:
    overall = report["overall_statistics"]
    failed, total = overall["failure_count"], overall["total_runs"]
    steps = []
    if failed:
        words = " ".join([again[0], *(shlex.quote(word) for word in again[1:])])
        steps.append(NextStep(f"retry the {failed} failed judgements", command=f"{words} -o {target} --resume"))
    data, code = {**report, "output_path": str(target)}, 1 if failed == total or (fail_on_any and failed) else 0
    draw = partial(draw_report, report=report, job=job, target=target)
    return DetailResult(data, human=draw, exit_code=code, next_steps=steps)


def _preview_records(file: Path, limit: int | None) -> ListResult:
    rows = [
        {"index": number, "line": line, "record": record}
        for number, (line, record) in enumerate(read_json_lines(file), start=1)
    ]
    if not rows:
        raise ValidationError(f"{file} is empty: it needs one JSON object per line")

    def describe(row: JsonObject) -> tuple[str, str]:
        return f"JSONL record #{row['index']}", json.dumps(row["record"], ensure_ascii=False, indent=2)

    return _preview(rows, limit, ("record",), f"Loaded {len(rows)} JSONL record(s) from {file}", describe)


def _preview_rubrics(ctx: AppContext, file: Path, limit: int | None) -> ListResult:
    parsed = load_rubric_configs(file)
    if not parsed:
        raise ValidationError(f"{file} has no rubric: an entry needs `id`, `rubric` and `model_info`")
    rows: list[JsonObject] = [
        {
            "index": number,
            "label": rubric_config.label,
            "line": rubric_config.line,
            "problems": list(rubric_config.problems),
            "config": rubric_config.payload,
        }
        for number, rubric_config in enumerate(parsed, start=1)
    ]
    for row in rows:
        for problem in row["problems"]:
            ctx.output.warn("RUBRIC_FILE", f"{file}:{row['line']}: {clean(row['label'])}: {problem}")

    def describe(row: JsonObject) -> tuple[str, str]:
        text = yaml.dump(row["config"], Dumper=_Blocks, allow_unicode=True, sort_keys=False, width=100)
        return f"Rubric config #{row['index']} ({row['label']})", text.rstrip()

    return _preview(rows, limit, ("label", "config"), f"Loaded {len(rows)} rubric config(s) from {file}", describe)


def _preview(
    rows: list[JsonObject],
    limit: int | None,
    columns: Sequence[str],
    head: str,
    describe: Callable[[JsonObject], tuple[str, str]],
) -> ListResult:
    page = rows[:limit]

    def draw(console: Console) -> None:
        print_text(console, head, "bold")
        for title, text in map(describe, page):
            console.print()
            print_text(console, title, "bold")
            print_text(console, text)
        if len(page) < len(rows):
            console.print()
            print_text(console, f"... and {len(rows) - len(page)} more", "dim")

    return ListResult(
        page,
        [Column("index", "#"), *(Column(name, name) for name in columns)],
        total_count=len(rows),
        has_more=len(page) < len(rows),
        human=draw,
    )


def draw_report(console: Console, report: JsonObject, job: rubric_run.RubricJob, target: Path) -> None:
    print_text(console, f"Rubric {report['rubric_id']}", "bold")
    print_text(console, f"  {report['rubric_source']}, judge {report['provider']}/{report['model']}", "dim")
    print_text(console, f"  {len(job.records)} records, {report['number']} judgement(s) each")
    for record in report["records"]:
        console.print()
        print_text(console, record["conversation_id"], "bold")
        for run in record["runs"]:
            head = f"  Run {run['run_index']:02d} [{run['status'].upper()}]"
            took = f"{run['duration_seconds']:.2f}s"
            if run["status"] == "success" and run["score"] is not None:
                print_text(console, f"{head} score {run['score']:.4f} ({took})", "green")
            else:
                print_text(console, f"{head} {run['error'] or 'no score'} ({took})", "red")
            if run.get("preview"):
                print_text(console, f"    text: {run['preview']}", "dim")
            if run.get("explanation"):
                print_text(console, f"    why:  {run['explanation']}")
    overall = report["overall_statistics"]
    if overall["total_runs"] > 1 or overall["failure_count"]:
        console.print()
        failed = f", {overall['failure_count']} failed" if overall["failure_count"] else ""
        head = f"{overall['total_runs']} judgements: {overall['success_count']} scored{failed}"
        print_text(console, head, "bold")
        for key in STATISTICS if overall["success_count"] else ():
            digits = 6 if key == "variance" else 4
            print_text(console, f"  {key:<9}{overall[key]:.{digits}f}")
    usage = report.get("usage") or {}
    if usage.get("prompt_tokens"):
        cost = f", ${usage['cost_usd']:.4f}" if usage.get("cost_usd") is not None else ", price unknown"
        tokens = f"{usage['prompt_tokens']:,} in, {usage['completion_tokens']:,} out"
        print_text(console, f"  tokens   {tokens}{cost}", "dim")
    comparison = report.get("baseline_comparison")
    if comparison:
        print_text(console, f"Baseline {comparison['source_path']}", "bold")
        for key, value in comparison["baseline_statistics"].items():
            delta = comparison["delta_statistics"][key]
            print_text(console, f"  {key} baseline={value:.4f} current={overall[key]:.4f} delta={delta:+.4f}")
    console.print()
    print_text(console, f"Report: {target}")


class _Blocks(yaml.SafeDumper): ...


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Blocks.add_representer(str, _text)
