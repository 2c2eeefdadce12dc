"""Benchmarks: a rollout and a dataset of its name; a run of one is an evaluation for each agent, of the same rows."""

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import pydantic
import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.base.jsonable import JsonObject
from osmosis.errors import NotFound, ValidationError
from osmosis.platform import Platform, tables
from osmosis.platform.datasets.service import iterate_rows
from osmosis.platform.git import repositories, sync
from osmosis.platform.models import service as models
from osmosis.platform.objects.store import Objects
from osmosis.platform.runs import downloads, lifecycle, submit, views
from osmosis.platform.settings import PlatformSettings
from osmosis.platform.workspaces.audit import Actor
from osmosis.records.api.runs import BenchmarkRunDetail, BenchmarkRunRow
from osmosis.records.config.benchmark import BenchmarkConfig, BenchmarkTasks
from osmosis.records.config.check import list_issues
from osmosis.records.run.rows import TASK_KEYS, DatasetStatus, Row
from osmosis.records.run.status import RunStatus

MAX_TASKS = 10_000
FILES = {"summary": "summary.csv", "results": "results.csv", "logs": "logs.txt"}
_SAME: JsonObject = {"source_type": "rollout", "runner_family": "osmosis", "pass_threshold": 1.0}
_SAME |= {"supports_harness": True, "requires_harness": False, "requires_judge_model": False}


def list_benchmarks(session: Session, workspace: tables.Workspace) -> list[tables.Dataset]:
    repository = repositories.find_for_workspace(session, workspace.id)
    names = [rollout.name for rollout in sync.list_rollouts(session, repository)] if repository else []
    table = tables.Dataset
    is_ready = table.status == DatasetStatus.UPLOADED.value, table.row_count <= MAX_TASKS
    query = sa.select(table).where(table.workspace_id == workspace.id, table.name.in_(names), *is_ready)
    return list(session.scalars(query.order_by(table.name)))


def find(session: Session, workspace: tables.Workspace, key: str) -> tables.Dataset:
    for dataset in list_benchmarks(session, workspace):
        if key in (dataset.name, dataset.id):
            return dataset
    hint = f"it is a synced rollout with a dataset of its name, of at most {MAX_TASKS} rows: osmosis benchmark list"
    raise NotFound(f"there is no benchmark {key!r} in workspace {workspace.name!r}", hint=hint)


@lru_cache(maxsize=64)
def read_tasks(objects: Objects, path: str | None, rows: int | None) -> tuple[Sequence[JsonObject], bool]:
    """Return the tasks of a dataset's rows, and whether they are Harbor's. Not within a session."""
    data = list(iterate_rows(objects, [(path or "", 0, "", range(rows or 0))]))
    return [_build_task(row) for row in data], any((row.metadata or {}).get(key) for row in data for key in TASK_KEYS)


def _build_task(row: Row) -> JsonObject:
    about = {**row.data, **(row.metadata or {})}
    name = next((about[key] for key in TASK_KEYS if about.get(key)), f"row-{row.index}")
    return {
        "name": str(name),
        **{key: str(about[key]) for key in ("category", "difficulty", "task_set") if about.get(key)},
    }


def build_benchmark(platform: Platform, dataset: tables.Dataset, *, is_detail: bool = False) -> JsonObject:
    tasks, _ = read_tasks(platform.objects, dataset.path, dataset.row_count)
    categories = sorted(Counter(task["category"] for task in tasks if "category" in task).items())
    return {
        **_SAME,
        **{"id": dataset.id, "name": dataset.name, "source_ref": dataset.name, "task_count": len(tasks)},
        "category_count": len(categories),
        "task_sets": sorted({task["task_set"] for task in tasks if "task_set" in task}),
        "platform_url": platform.settings.dataset_url(dataset.id),
        "categories": [{"name": name, "task_count": count} for name, count in categories],
        **({"tasks": tasks} if is_detail else {}),
    }


# -- submit --


def submit_run(
    platform: Platform, workspace: tables.Workspace, actor: Actor, body: Mapping[str, object]
) -> tuple[tables.BenchmarkRun, int]:
    """Store a run and its evaluations, all or none; return it and its number of tasks. Raise as a submit does."""
    try:
        config, values = BenchmarkConfig.from_request(body)
        config.evaluations()  # which says what is wrong before anything is read
    except pydantic.ValidationError as error:
        raise submit.explain_invalid("benchmark", list_issues(BenchmarkConfig, error)) from None
    key = config.experiment.benchmark
    with platform.db.read() as session:
        dataset = find(session, workspace, key)
        for number, model in enumerate(agent.model for agent in config.agents):
            name = model.lora_model_name
            if name and (base := models.find_trained(session, workspace.id, name).base_model) != model.base_model:
                problem = f"agents.{number}.model.base_model", f"{name} is an adapter of {base}"
                raise _refuse([problem], f'base_model = "{base}"')
    tasks, is_harbor = read_tasks(platform.objects, dataset.path, dataset.row_count)
    rows, orders = _pick_rows(tasks, config.tasks, key), list[submit.Order]()
    for evaluation in config.evaluations(is_harbor=is_harbor):
        own = {secret: values[secret] for secret in evaluation.secret_names() if secret in values}
        request = submit.RunRequest(evaluation, own, rows=rows)
        order = submit.check(platform, workspace, actor, request, kind="eval")
        orders.append(replace(order, code=orders[0].code) if orders else order)
    run = tables.BenchmarkRun(workspace_id=workspace.id, creator_id=actor.user.id, benchmark=key)
    run.config, run.run_ids = config.to_dict(), []
    with platform.db.write() as session:
        run.name = lifecycle.next_name(session, workspace.id, f"{key}-benchmark", tables.BenchmarkRun)
        for number, order in enumerate(orders, 1):
            request = replace(order.request, name=f"{run.name}-agent-{number}")
            run.run_ids.append(submit.insert(session, platform.vault, replace(order, request=request)).id)
        session.add(run)
    return run, len(rows)


def _pick_rows(tasks: Sequence[JsonObject], chosen: BenchmarkTasks, key: str) -> list[int]:
    selected, problems = set(range(len(tasks))), []
    sets = [chosen.task_set] if chosen.task_set else []
    picked = ("task_names", "name", chosen.task_names), ("categories", "category", chosen.categories)
    for table, field, names in (*picked, ("task_set", "task_set", sets)):
        values = [task.get(field) for task in tasks]
        problems += [(f"tasks.{table}", f"there is none called {name!r}") for name in names if name not in values]
        selected &= {row for row, value in enumerate(values) if not names or value in names}
    if problems or not selected:
        raise _refuse(problems or [("tasks", "no task has all of them")], f"osmosis benchmark show {key}")
    return sorted(selected)


def _refuse(problems: Sequence[tuple[str, str]], hint: str) -> ValidationError:
    message = "; ".join(f"{key}: {problem}" for key, problem in problems[:5])
    return ValidationError(message, hint=hint, issues=[{"key": key, "message": problem} for key, problem in problems])


# -- runs --


Members = tuple[tables.BenchmarkRun, list[tables.Run]]
"""A benchmark run with its evaluations in the order of its agents, without deleted ones."""


def select_runs(workspace_id: str, *conditions: sa.ColumnElement[bool]) -> sa.Select[tables.BenchmarkRun]:
    query = sa.select(tables.BenchmarkRun).where(tables.BenchmarkRun.workspace_id == workspace_id, *conditions)
    return query.order_by(tables.BenchmarkRun.created_at.desc(), tables.BenchmarkRun.id)


def list_members(session: Session, query: sa.Select[tables.BenchmarkRun]) -> list[Members]:
    runs = list(session.scalars(query))
    ids = [run_id for run in runs for run_id in run.run_ids]
    by_id = {run.id: run for run in session.scalars(sa.select(tables.Run).where(tables.Run.id.in_(ids)))}
    return [(run, [by_id[run_id] for run_id in run.run_ids if run_id in by_id]) for run in runs]


def get_members(session: Session, workspace_id: str, name: str) -> Members:
    named = sa.or_(tables.BenchmarkRun.name == name, tables.BenchmarkRun.id == name)
    for members in list_members(session, select_runs(workspace_id, named)):
        return members
    raise NotFound(f"no benchmark run named {name!r} in this workspace", hint="osmosis benchmark list --runs")


def build_agent(run: tables.BenchmarkRun, evaluation: tables.Run) -> JsonObject:
    env, report = evaluation.config.get("env", {}), views.report_of(evaluation)
    row: JsonObject = {
        **{"id": evaluation.id, "benchmark_run_agent_id": evaluation.id, "run_name": evaluation.name},
        "agent_index": run.run_ids.index(evaluation.id),
        "harness": evaluation.config.get("experiment", {}).get("command") or env.get("HARBOR_AGENT"),
        **{"model": evaluation.model_path, "model_display_name": evaluation.model_path},
        **{"status": evaluation.status, "environment_variables": env},
    }
    primary = report.primary if report else None
    if report is None or primary is None or primary.pass_rate is None:
        return row
    interval, attempts, cost = primary.pass_rate_interval, report.completed or 1, report.usage.cost_usd
    bounds = {"low": interval.low, "high": interval.high} if interval else {}
    return row | {
        "n_tasks": report.rows,
        "pass_at_1": {"value": primary.pass_rate, **bounds},
        "pass_at_k": [point.to_dict() for point in views.pass_at_k(primary)],
        "cost_per_task": None if cost is None else cost / attempts,
        "mean_duration_seconds": report.latency_ms.mean / 1000 if report.latency_ms else None,
        "tokens_per_task": report.usage.total_tokens / attempts,
    }


def rank(agents: Iterable[JsonObject]) -> list[JsonObject]:
    agents = sorted(agents, key=_rate, reverse=True)
    for agent in agents:
        agent["rank"] = 1 + sum(_rate(other) > _rate(agent) for other in agents) if "pass_at_1" in agent else None
    return agents


def _rate(agent: JsonObject) -> float:
    return float(agent["pass_at_1"]["value"]) if "pass_at_1" in agent else -1.0


def build_leaderboard(session: Session, dataset: tables.Dataset) -> list[JsonObject]:
    newest: dict[tuple[str | None, str], JsonObject] = {}
    query = select_runs(dataset.workspace_id, tables.BenchmarkRun.benchmark == dataset.name)
    for run, evaluations in list_members(session, query):
        for evaluation in evaluations:
            is_all = evaluation.sampled_rows == dataset.row_count and evaluation.dataset_sha256 == dataset.sha256
            if is_all and evaluation.status == RunStatus.FINISHED.value:
                agent = build_agent(run, evaluation)
                newest.setdefault((agent["harness"], agent["model"]), agent)
    return rank(newest.values())


def build_row(session: Session, settings: PlatformSettings, members: Members) -> BenchmarkRunRow:
    run, runs = members
    best = max((_rate(build_agent(run, evaluation)) for evaluation in runs), default=-1.0)
    statuses = {RunStatus(each.status) for each in runs}
    is_over, is_waiting = all(status.over for status in statuses), statuses == {RunStatus.PENDING}
    order = (RunStatus.FAILED, RunStatus.STOPPED, RunStatus.FINISHED) if is_over else (RunStatus.RUNNING,)
    done = sum((each.progress or tables.StoredProgress()).get("completed", 0) for each in runs if each.started_at)
    expected = sum(each.sampled_rows * each.config.get("evaluation", {}).get("n", 1) for each in runs)
    return BenchmarkRunRow.from_row(
        run,
        status=RunStatus.PENDING if is_waiting else next((s for s in order if s in statuses), order[-1]),
        started_at=min((each.started_at for each in runs if each.started_at), default=None),
        completed_at=max((each.completed_at for each in runs if each.completed_at), default=None) if is_over else None,
        platform_url=settings.run_url(runs[0].id) if runs else None,
        benchmark_name=run.benchmark,
        agent_count=len(run.run_ids),
        best_pass_at_1=best if best >= 0 else None,
        **{"ingested_results": done, "expected_results": expected, "progress": {"completed": done, "total": expected}},
    )


def build_detail(session: Session, settings: PlatformSettings, members: Members) -> BenchmarkRunDetail:
    run, evaluations = members
    row, agents = build_row(session, settings, members), rank(build_agent(run, each) for each in evaluations)
    tasks, source = run.config.get("tasks"), {"source_type": "rollout", "source_ref": run.benchmark}
    return BenchmarkRunDetail(
        benchmark_run=row,
        configuration={**source, "task_filters": tasks, "config": run.config.get("execution")},
        agents=agents,
        agent_metrics=[agent for agent in agents if agent["rank"]],
        progress={"ingested": row.ingested_results, "expected": row.expected_results},
    )


def build_file(session: Session, settings: PlatformSettings, members: Members, path: str) -> bytes:
    (run, evaluations), rows = members, list[JsonObject]()
    if path == FILES["logs"]:
        return b"".join(downloads.build_content(session, settings, evaluation, path) for evaluation in evaluations)
    if path == FILES["summary"]:
        for agent in rank(build_agent(run, evaluation) for evaluation in evaluations):
            bounds = {f"pass_at_1_{name}": value for name, value in agent.pop("pass_at_1", {}).items()}
            rows.append({name: agent[name] for name in agent if not isinstance(agent[name], (dict, list))} | bounds)
    elif path == FILES["results"]:
        for evaluation in evaluations:
            lines = downloads.build_content(session, settings, evaluation, "summary.jsonl").splitlines()
            about = {"run_name": evaluation.name, "model": evaluation.model_path}
            rows += [{**about, **json.loads(line)} for line in lines]
    else:
        raise NotFound(f"a benchmark run has no file {path!r}", hint="osmosis benchmark download NAME")
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()
