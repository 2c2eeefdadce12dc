"""What `osmosis eval` and `osmosis train` share: list, info, logs, stop, wait, retry, download. Two nouns, one code."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import UsageError, ValidationError
from . import prompts
from .context import AppContext
from .output import Column, DetailResult, ListResult, NextStep, OperationResult, Result, to_json
from .render_text import when
from .run_body import RunView

if TYPE_CHECKING:
    from rich.console import Console

    from ..client.runs import Runs

Kind = Literal["eval", "training"]
LOG_POLL_S = 0.7
LIST_COLUMNS = (
    Column("name", "Name"),
    Column("status", "Status"),
    Column("rollout.name", "Rollout"),
    Column("model.name", "Model", wide=True),
    Column("results.score", "Reward", justify="right", show=lambda v: "-" if v is None else f"{v:.3f}"),
    Column("results.pass_rate", "Pass", justify="right", show=lambda v: "-" if v is None else f"{v * 100:.0f} %"),
    Column("created_at", "Created", show=when, wide=True),
)
TRAINING_COLUMNS = (
    Column("name", "Name"),
    Column("status", "Status"),
    Column("rollout.name", "Rollout"),
    Column("model.model_name", "Model", wide=True),
    Column("current_step", "Step", justify="right"),
    Column("total_steps", "Of", justify="right"),
    Column("created_at", "Created", show=when, wide=True),
)


def group_of(kind: Kind) -> str:
    return "eval" if kind == "eval" else "train"


def page_flags(limit: int | None, everything: bool) -> int:
    """The page size; `--limit` and `--all` exclude each other."""
    if everything and limit is not None:
        raise UsageError("--limit and --all exclude each other: keep one")
    return limit or 50


def list_runs(ctx: AppContext, kind: Kind, *, limit: int | None, everything: bool, offset: int = 0) -> ListResult:
    size = page_flags(limit, everything)
    with ctx.client() as client:
        runs = client.runs(kind)
        scope = scope_of(client.scope)
        columns = LIST_COLUMNS if kind == "eval" else TRAINING_COLUMNS
        empty = f"no run yet: osmosis {group_of(kind)} submit CONFIG"
        if everything:
            return ListResult(runs.all(), columns, empty=empty, extra=scope)
        page = runs.page(limit=size, offset=offset)
    return ListResult(
        runs.rows(page),
        columns,
        empty=empty,
        total_count=page.get("total_count"),
        has_more=bool(page.get("has_more")),
        next_offset=page.get("next_offset"),
        extra=scope,
    )


def scope_of(scope: dict[str, str]) -> dict[str, Any]:
    """The envelope's word for which workspace was spoken for."""
    if "workspace" in scope:
        return {"workspace": {"name": scope["workspace"]}}
    return {"git": {"identity": scope["identity"]}} if "identity" in scope else {}


def run_info(ctx: AppContext, kind: Kind, name: str, output: str | None = None) -> DetailResult:
    from ..errors import NotFound

    with ctx.client() as client:
        runs = client.runs(kind)
        view = RunView(f"{kind}", runs.get(name))
        try:
            metrics: dict[str, Any] | None = runs.metrics(name)
        except NotFound:
            metrics = None
    data = {**view.detail, "summary": view.summary(), "metrics": metrics}
    group = group_of(kind)
    steps = [] if view.over else [NextStep("follow it", command=f"osmosis {group} wait {view.name}")]
    result = DetailResult(data, human=drawn(view), next_steps=steps)
    if output:
        result.extra = {"output": str(_write_json(ctx.path(output), result.envelope()))}
    return result


def _write_json(path: Path, body: dict[str, Any]) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(to_json(body) + "\n")
    except OSError as error:
        raise ValidationError(f"cannot write {path}: {error.strerror}", hint="-o FILE") from error
    return path


def drawn(view: RunView) -> Any:
    """Draws a run for people."""

    def draw(console: Console) -> None:
        from .run_view import draw_run

        draw_run(console, view.head(), view.report, view.failure)

    return draw


def finished_result(
    operation: str, view: RunView, *, fail_under: float | None = None, resource: dict[str, Any] | None = None
) -> OperationResult:
    """The result of a run that is over: exit code 1 when it failed, nothing was scored, or it is below the bar."""
    report, summary = view.report, view.summary()
    code = 0 if view.status == "finished" else 1
    rate = summary.get("pass_rate")
    below = fail_under is not None and (rate is None or rate < fail_under)
    message = f"run {view.name} is {view.status}"
    if view.unscored:
        message, code = f"{message}; none of its rollouts has a score", 1
    if below:
        shown = "none" if rate is None else f"{rate:.4f}"
        message, code = f"{message}; its pass rate {shown} is below --fail-under {fail_under}", 1
    body = {
        **(resource or {"id": view.run.get("id"), "name": view.name, "url": view.url}),
        "status": view.status,
        "summary": summary,
        "results": view.results,
        "report": report.to_dict() if report else None,
        "failure": view.failure,
    }

    def draw(console: Console) -> None:
        from rich.text import Text

        drawn(view)(console)
        if below or view.unscored:
            console.print(Text(message, style="red"))

    group = operation.split(".", 1)[0]
    steps = [NextStep("look into it", command=f"osmosis {group} logs {view.name}")] if code and not below else []
    status = "failed" if code else "success"
    return OperationResult(operation, message, body, status=status, human=draw, exit_code=code, next_steps=steps)


def wait_for(ctx: AppContext, kind: Kind, name: str, fail_under: float | None) -> OperationResult:
    from .run_watch import watch

    with ctx.client() as client:
        view = watch(ctx, client.runs(kind), kind, name)
    return finished_result(f"{group_of(kind)}.wait", view, fail_under=fail_under)


def stop_run(ctx: AppContext, kind: Kind, name: str, *, yes: bool) -> OperationResult:
    operation = f"{group_of(kind)}.stop"
    with ctx.client() as client:
        runs = client.runs(kind)
        view = RunView(kind, runs.get(name))
        if view.over:
            return OperationResult(operation, f"run {view.name} is {view.status} already", _brief(view))
        if not prompts.confirm(ctx, f"Stop run {view.name}?", yes=yes):
            return OperationResult(operation, "Cancelled.", _brief(view), status="cancelled")
        runs.stop(view.name)
        view = RunView(kind, runs.get(view.name))
    message = f"run {view.name} is stopping" if not view.over else f"run {view.name} is {view.status}"
    return OperationResult(operation, message, _brief(view))


def delete_run(ctx: AppContext, kind: Kind, name: str, *, yes: bool) -> OperationResult:
    operation = f"{group_of(kind)}.delete"
    with ctx.client() as client:
        runs = client.runs(kind)
        view = RunView(kind, runs.get(name))
        if not prompts.confirm(ctx, f"Delete run {view.name} and everything it produced?", yes=yes):
            return OperationResult(operation, "Cancelled.", _brief(view), status="cancelled")
        runs.delete(view.name)
    return OperationResult(operation, f"run {view.name} is deleted", _brief(view))


def _brief(view: RunView) -> dict[str, Any]:
    return {"id": view.run.get("id"), "name": view.name, "status": view.status, "url": view.url}


def show_logs(ctx: AppContext, kind: Kind, name: str, *, limit: int, cursor: str | None, follow: bool) -> Result | None:
    with ctx.client() as client:
        runs = client.runs(kind)
        page = runs.logs(name, limit=limit, cursor=cursor)
        lines = list(page.get("logs") or [])
        if not follow:
            columns = [Column("timestamp", "Time"), Column("level", "Level"), Column("step", "Step")]
            columns.append(Column("message", "Message"))

            def draw(_: Console) -> None:
                _stream(ctx, lines)

            extra = {"next_cursor": page.get("next_cursor")}
            return ListResult(lines, columns, extra=extra, human=draw)
        _stream(ctx, lines)
        _follow(ctx, runs, kind, name, page.get("latest_cursor"))
    return None


def _follow(ctx: AppContext, runs: Runs, kind: Kind, name: str, cursor: str | None) -> None:
    """Print lines as they come, until the run is over and everything was said."""
    while True:
        over = RunView(kind, runs.get(name)).over
        page = runs.logs(name, cursor=cursor, newer=True)
        lines = list(page.get("logs") or [])
        _stream(ctx, lines)
        cursor = page.get("latest_cursor") or cursor
        if over and not lines:
            return
        time.sleep(LOG_POLL_S)


def _stream(ctx: AppContext, lines: list[dict[str, Any]]) -> None:
    for line in lines:
        clock = str(line.get("timestamp") or "")[11:19]
        level = str(line.get("level") or "info")
        mark = "" if level == "info" else f" {level}"
        ctx.output.stream(line, f"{clock} {line.get('step') or '-'}{mark}: {line.get('message')}")


def retry_run(ctx: AppContext, name: str, *, yes: bool, secrets_file: str | None) -> OperationResult:
    from .submit import read_secrets_file

    secrets = read_secrets_file(ctx, secrets_file) if secrets_file else {}
    with ctx.client() as client:
        view = RunView("eval", client.evals.get(name))
        if not prompts.confirm(ctx, f"Run the failed and skipped rollouts of {view.name} again?", yes=yes):
            return OperationResult("eval.retry", "Cancelled.", _brief(view), status="cancelled")
        answer = client.evals.retry(view.name, secrets)
    count = answer.get("retryable_samples")
    what = f"{count} rollouts of {view.name} run again" if count else f"{view.name} runs again from the start"
    steps = [NextStep("follow it", command=f"osmosis eval wait {view.name}")]
    return OperationResult("eval.retry", what, answer, next_steps=steps)


def download_dir(ctx: AppContext, name: str, output: str | None) -> Path:
    """`-o`, else `.osmosis/evals/<name>` of the workspace, else of this folder."""
    from ..errors import WorkspaceRequired

    if output:
        return ctx.path(output)
    try:
        root = ctx.workspace_root()
    except WorkspaceRequired:
        root = ctx.cwd
    return root / ".osmosis" / "evals" / name
