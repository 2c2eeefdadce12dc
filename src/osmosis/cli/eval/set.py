"""`osmosis eval run SET`: each run is a process of its own, because two rollouts cannot share an interpreter."""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import ValidationError as PydanticError

from osmosis.base.files import tomllib
from osmosis.base.jsonable import JsonObject
from osmosis.cli.core.context import AppContext
from osmosis.cli.core.results import Column, ListResult, build_columns
from osmosis.cli.eval.flags import RunFlags
from osmosis.cli.eval.on_platform import SetSubmit, submit_set
from osmosis.engine.journal import Journal
from osmosis.errors import NotFound, OsmosisError, UsageError, ValidationError
from osmosis.local.quarantine_file import file_around, read
from osmosis.local.run import stored_report
from osmosis.local.run_options import check_name, runs_folder
from osmosis.metrics.compare import Comparison, compare
from osmosis.metrics.formats import dollars, duration, interval
from osmosis.metrics.intervals import LEVEL, adjusted
from osmosis.records.run.history import EvalSet, SetRun, Trade, find_unbeaten
from osmosis.records.run.report import Report
from osmosis.records.run.rows import RowQuarantine
from osmosis.workspace.config_file import load_eval_config
from osmosis.workspace.layout import Workspace, find_workspace, pick_config

FOLDER = "configs/sets"


@dataclass
class SetLine:
    run: SetRun
    name: str
    before: str | None
    report: Report | None = None
    error: str | None = None
    beside: Comparison | None = None
    p_value: float | None = None
    trade: Trade | None = None
    unbeaten: bool = False

    @property
    def verdict(self) -> str | None:
        if self.beside is None:
            return None
        chance = self.p_value is not None and self.p_value >= 1 - LEVEL
        return "no clear difference" if chance else self.beside.verdict

    @property
    def cost(self) -> float:
        return self.report.spent().cost_usd if self.report else 0.0

    def to_row(self) -> JsonObject:
        primary = self.report.primary if self.report else None
        between = primary.mean_interval if primary else None
        run = self.run
        return {
            **{"run": run.key, "name": self.name, "config": run.config, "model": run.model, "params": run.params},
            "completed": self.report.completed if self.report else 0,
            "total": self.report.total if self.report else None,
            "score": primary.name if primary else None,
            "mean": primary.mean if primary else None,
            "mean_ci": [between.low, between.high] if between else None,
            "pass_rate": primary.pass_rate if primary else None,
            "cost_usd": self.report.usage.cost_usd if self.report else None,
            "cost_per_rollout": self.trade.cost_usd if self.trade else None,
            "time_per_rollout": self.trade.latency_ms if self.trade else None,
            "unbeaten": self.unbeaten,
            "difference": self.beside.difference if self.beside else None,
            **{"p_value": self.p_value, "verdict": self.verdict, "error": self.error},
            "between": interval(between) if between else "",
        }


def run_set(ctx: AppContext, word: str, flags: RunFlags) -> ListResult:
    """Run configs x models x parameters, with one budget and one table; the same command resumes it."""
    baseline = flags.baseline[0] if flags.baseline else None
    if flags.on is not None and baseline is not None:
        hint = "osmosis eval compare platform:A platform:B"
        raise UsageError("--baseline and --on cannot be used together", hint=hint)
    if flags.fail_on_regression and baseline is None:
        raise UsageError("--fail-on-regression needs --baseline", hint="--baseline NAME of an earlier execution")
    unset = asdict(RunFlags())
    others = [flag for flag, value in asdict(flags).items() if value and value != unset[flag] and flag not in _OF_SET]
    if refused := [*flags.settings, *others]:
        hint = f"the set's own keys are {', '.join(EvalSet.model_fields)}; write the rest into its configs"
        raise UsageError(f"--{refused[0].replace('_', '-')} is not for a set", hint=hint)
    workspace = find_workspace(ctx.cwd)
    path = _file(ctx, workspace, word)
    eval_set = read_set(path)
    name = check_name(flags.name or path.stem, "--name")
    lines = []
    for run in eval_set.runs():
        own = f"{name}--{run.first}" if run.first != run.key else None
        before = own if baseline is None else f"{baseline}--{run.key}"
        lines.append(SetLine(run, check_name(f"{name}--{run.key}", "--name"), before))
    for config in dict.fromkeys(line.run.config for line in lines):
        typed = workspace.root / config
        file = typed if typed.is_file() else ctx.path(pick_config(workspace, "eval", config))
        load_eval_config(file, workspace.root, to_run=True)
    if flags.on is not None:
        submit = SetSubmit(eval_set, [(line.name, line.run) for line in lines], name, flags.secrets_file)
        return submit_set(ctx, flags.on, submit)
    runs = runs_folder(ctx.cwd)
    if baseline is not None and not any((runs / str(line.before)).is_dir() for line in lines):
        raise NotFound(f"no run of this set is stored under {baseline}", hint=f"osmosis eval run {path.stem} --name X")
    interrupted = _run_all(ctx, eval_set, lines, runs, flags)
    _compare(lines, runs, read(file_around(ctx.cwd)))
    for line in lines:
        line.trade = Trade.from_report(line.report, Journal(runs / line.name).plan().dataset) if line.report else None
    unbeaten = find_unbeaten({line.name: line.trade for line in lines})
    for line in lines:
        line.unbeaten = line.name in unbeaten
    failed = any(line.error or line.report is None or line.report.completed < line.report.total for line in lines)
    worse = flags.fail_on_regression and any(line.verdict == "worse" for line in lines)
    return _table(lines, 130 if interrupted else int(failed or worse))


_OF_SET = {"words", "name", "on", "baseline", "fail_on_regression", "secrets_file", "quiet", "verbose", "settings"}


def read_set(path: Path) -> EvalSet:
    try:
        return EvalSet.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValidationError(f"{path}: {error}") from error
    except PydanticError as error:
        messages = [f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}" for entry in error.errors()]
        keys = ", ".join(EvalSet.model_fields)
        raise ValidationError(f"{path}: {'; '.join(messages)}", hint=f"the keys of a set: {keys}") from error


def _file(ctx: AppContext, workspace: Workspace, name: str) -> Path:
    home = workspace.root / FOLDER
    for path in (ctx.path(name), home / name, home / f"{name}.toml"):
        if path.is_file():
            return path
    names = ", ".join(sorted(path.stem for path in home.glob("*.toml")))
    raise NotFound(f"there is no set {name}", hint=f"one of: {names}" if names else f"write {FOLDER}/{name}.toml")


def _run_all(ctx: AppContext, eval_set: EvalSet, lines: list[SetLine], runs: Path, flags: RunFlags) -> bool:
    for line in lines:
        if (stored := Journal(runs / line.name)).exists:
            line.report = stored_report(stored)
    for i, line in enumerate(lines, 1):
        others = sum(other.cost for other in lines if other is not line)
        left = None if eval_set.max_cost is None else eval_set.max_cost - others  # with what it has spent already
        stored = Journal(runs / line.name)
        if left is not None and left <= 0:
            line.error = f"not run: the set's budget of {eval_set.max_cost:g} USD is spent"
            continue
        ctx.output.say(f"{i} of {len(lines)}: {line.name}")
        interrupted, line.error = run_process(ctx, build_command(eval_set, line, left, flags.secrets_file))
        if stored.exists:
            line.report = stored_report(stored)
            line.error = None if line.report else line.error
        if interrupted:
            return True
    return False


def build_command(eval_set: EvalSet, line: SetLine, left: float | None, secrets_file: str | None) -> list[str]:
    run = line.run
    words = [sys.executable, "-m", "osmosis", "--json", "eval", "run", run.config, "--name", line.name, "--yes"]
    if run.model is not None:
        model, _, url = run.model.partition("@") if "@http" in run.model else (run.model, "", "")
        words += ["--model", model, *(["--base-url", url] if url else [])]
        if (price := eval_set.prices.get(model) or eval_set.prices.get(run.model)) is not None:
            words += ["--price", f"{price[0]:g},{price[1]:g}"]
    for key, value in run.params.items():
        words += ["--param", f"{key}={json.dumps(value)}"]
    for path, value in run.settings.items():
        words += ["--set", f"{path}={value if isinstance(value, str) else json.dumps(value)}"]
    options = (("--n", eval_set.n), ("--limit", eval_set.limit), ("--max-cost", left), ("--secrets-file", secrets_file))
    return [*words, *(str(word) for flag, value in options if value is not None for word in (flag, value))]


def run_process(ctx: AppContext, words: list[str]) -> tuple[bool, str | None]:
    interrupted = False
    with subprocess.Popen(
        words, cwd=ctx.cwd, env=dict(ctx.environ), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while True:
            try:
                _, stderr = process.communicate()
                break
            except KeyboardInterrupt:  # the run hears of it, too, and lets what is in flight finish
                interrupted = True
    if process.returncode in (0, 130):
        return interrupted or process.returncode == 130, None
    try:
        return interrupted, str(json.loads(stderr.strip().splitlines()[-1])["error"]["message"])
    except (ValueError, KeyError, IndexError, TypeError):
        return interrupted, f"ended with exit code {process.returncode}"


def _compare(lines: list[SetLine], runs: Path, quarantine: RowQuarantine) -> None:
    for line in lines:
        before, after = Journal(runs / str(line.before)), Journal(runs / line.name)
        if line.before is None or not (before.exists and after.exists):
            continue
        plan, later = before.plan(), after.plan()
        bounds = {**later.score_bounds, **plan.score_bounds}
        aside = quarantine.of([Path(plan.dataset).stem, Path(later.dataset).stem]).active
        rollouts = before.rollouts(), after.rollouts()
        try:
            line.beside = compare(*rollouts, threshold=plan.pass_threshold, bounds=bounds, aside=aside)
        except OsmosisError as error:
            line.error = line.error or error.message
    tested = [line for line in lines if line.beside is not None]
    values = adjusted([line.beside.p_value for line in tested if line.beside is not None])
    for line, value in zip(tested, values, strict=True):
        line.p_value = value


def _table(lines: list[SetLine], code: int) -> ListResult:
    columns = [
        *build_columns("run=run", ">completed=done", ">total=of"),
        Column("mean", "mean", "right", show=_three),
        Column("between", "95 % interval"),
        Column("pass_rate", "pass rate", "right", show=_three),
        Column("cost_per_rollout", "cost each", "right", show=dollars),
        Column("time_per_rollout", "time each", "right", show=duration),
        Column("unbeaten", "unbeaten", show=lambda v: "yes" if v else ""),
        *(_COMPARED if any(line.before is not None for line in lines) else ()),
        Column("error", "problem"),
    ]
    return ListResult([line.to_row() for line in lines], columns, exit_code=code)


def _three(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else "-"


_COMPARED = (Column("difference", "difference", "right", show=_three), Column("verdict", "verdict"))
