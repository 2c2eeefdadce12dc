"""The verbs that evaluation and training runs share. `NAME` is a local run's first, `platform:NAME` never."""

import functools
import inspect
import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

from pydantic import ValidationError as PydanticError
from rich.console import Console
from typer import Argument, Option

from osmosis.base.jsonable import JsonObject
from osmosis.cli.core import completion, prompts, results
from osmosis.cli.core.connect import Cursor, Everything, Limit, Lines, Offset, Paging, list_result
from osmosis.cli.core.context import AppContext, current, read_secrets_file
from osmosis.cli.core.render import draw_curves, draw_list, figure_table
from osmosis.cli.core.results import Column, ListResult, NextStep, OperationResult, build_columns, when
from osmosis.cli.eval.follow import draw_detail, finished_result, judge_run, model_steps, run_ref, show_logs, watch
from osmosis.cli.eval.run_sources import RunFinder
from osmosis.cli.eval.transfer import download_run
from osmosis.cli.token import parse_lifetime
from osmosis.client import PlatformClient
from osmosis.errors import NotFound, NothingToRetry, OsmosisError, UsageError, ValidationError
from osmosis.local.run import mark, marks_of
from osmosis.local.run_options import runs_folder
from osmosis.metrics.formats import number, percent
from osmosis.metrics.training import list_figures
from osmosis.records.api.runs import MAX_SHARE_DAYS, RetryRun, RunDetail
from osmosis.records.api.training import TrainingMetrics
from osmosis.records.run.annotations import MarkChange, check_tag
from osmosis.records.run.status import NOUNS, RunKind

COLUMNS = {
    "eval": (
        *results.build_columns("name=Name", "status=Status", "rollout.name=Rollout"),
        results.Column("model.name", "Model", wide=True),
        results.Column("results.score", "Reward", justify="right", show=number),
        results.Column("results.pass_rate", "Pass", justify="right", show=percent),
        results.Column("tags", "Tags", show=lambda tags: ", ".join(tags or []), wide=True),
        results.Column("created_at", "Created", show=results.when, wide=True),
    ),
    "training": (
        *results.build_columns("name=Name", "status=Status", "rollout.name=Rollout"),
        results.Column("model.model_name", "Model", wide=True),
        *results.build_columns(">current_step=Step", ">total_steps=Of"),
        results.Column("reward", "Reward", justify="right", show=number),
        results.Column("validation_reward", "Validation", justify="right", show=number),
        results.Column("created_at", "Created", show=results.when, wide=True),
    ),
    "benchmark": (
        *results.build_columns("name=Name", "status=Status", "benchmark_name=Benchmark", "agent_count=Agents"),
        results.Column("best_pass_at_1", "Best", justify="right", show=percent),
        results.Column("created_at", "Created", show=results.when, wide=True),
    ),
}
CHECKPOINT_COLUMNS = (
    *results.build_columns("checkpoint_name=Checkpoint", ">checkpoint_step=Step"),
    results.Column("reward", "Reward", justify="right", show=number),
    results.Column("best", "", show=lambda best: "best" if best else ""),
    results.Column("status", "Status"),
    results.Column("created_at", "Created", show=results.when),
)

EvalName = Annotated[str, Argument(help="Name or id of the run", autocompletion=completion.eval_runs)]
AnyName = Annotated[
    str, Argument(help="A local run, else the platform's (platform:NAME)", autocompletion=completion.runs)
]
TrainName = Annotated[str, Argument(help="Name or id of the run", autocompletion=completion.training_runs)]
BenchmarkRunName = Annotated[str, Argument(help="Name or id of the run", autocompletion=completion.benchmark_runs)]
OutputFile = Annotated[Path | None, Option("--output", "-o", help="Also write it as JSON to this file")]
Overwrite = Annotated[bool, Option(help="With -o: replace an existing file", hidden=True)]
FailUnder = Annotated[float | None, Option(min=0, max=1, help="Exit with 1 when the pass rate is below this")]


class Marking(MarkChange):
    @classmethod
    def parse(
        cls, *, tags: list[str] | None = None, remove_tags: list[str] | None = None, **values: object
    ) -> "Marking | None":
        values = {key: value for key, value in values.items() if value is not None}
        if not (tags or remove_tags or values):
            return None
        try:
            add_tags = [check_tag(tag) for tag in tags or []]
            return cls.model_validate({"add_tags": add_tags, "remove_tags": remove_tags or [], **values})
        except PydanticError as error:
            raise UsageError(f"{error.errors()[0]['msg']}", hint="write less") from error
        except ValueError as error:
            raise UsageError(str(error), hint="osmosis eval edit RUN --tag nightly") from None


def marked_result(operation: str, edited: JsonObject) -> results.OperationResult:
    parts = [f"tags: {', '.join(edited.get('tags') or []) or 'none'}"]
    parts += ["pinned"] if edited.get("pinned") else []
    parts += [f"note: {edited['note']}"] if edited.get("note") else []
    parts += [f"priority {edited['priority']}"] if "priority" in edited else []
    return results.OperationResult(operation, f"{edited['name']}: {'; '.join(parts)}", edited)


class RunCommands:
    def __init__(self, kind: RunKind, *, run: str, info_help: str, keeps: str, produced: str) -> None:
        self.kind, self.noun, self.has_local = kind, NOUNS[kind], kind == "eval"
        about = "evaluation runs of this workspace, or of this machine" if self.has_local else f"{run}s"
        wait_help = f"Follow a {run} until it is over. Ctrl-C does not stop it; the same command follows it again."
        edit_help = f"Change what people write on a {run} (tags, a note, its name, a pin), or its place in the queue."
        edit_example = 'edit multiply-4 --tag nightly --note "a new prompt"'
        platform = {"eval": EvalName, "training": TrainName, "benchmark": BenchmarkRunName}[kind]
        anywhere = AnyName if self.has_local else platform
        self.commands = {
            "list_runs": _document(self.list_runs, f"List the {about}, newest first.", "list --limit 10"),
            "info": _document(self.info, info_help, "show multiply-1", "show multiply-1 --json", name=platform),
            "wait": _document(self.wait, wait_help, "wait multiply-1 --timeout 600", name=platform),
            "logs": _document(self.logs, f"Show the log of a {run}.", "logs multiply-1 -f", name=platform),
            "stop": _document(self.stop, f"Stop a {run}; {keeps}.", "stop multiply-1 --yes", name=platform),
            "edit": _document(self.edit, edit_help, edit_example, "edit multiply-4 --pin", name=anywhere),
            "delete": _document(
                self.delete, f"Delete a {run} that is over, with {produced}.", "delete multiply-1 --yes", name=anywhere
            ),
        }

    def list_runs(
        self,
        limit: Limit = None,
        offset: Offset = 0,
        everything: Everything = False,
        tag: Annotated[str | None, Option(help="Only runs with this tag")] = None,
        local: Annotated[bool, Option(help="Only runs of this machine")] = False,
    ) -> results.ListResult:
        ctx, paging = current(), Paging(limit, everything, offset)
        if local and self.has_local:
            return list_local(ctx, tag)
        empty = f"no run has the tag {tag}" if tag else f"no runs yet: osmosis {self.noun} submit CONFIG"
        try:
            result = list_result(
                ctx, lambda client: client.runs(self.kind).tagged(tag), COLUMNS[self.kind], paging, empty=empty
            )
        except OsmosisError as error:
            if ctx.options.platform or ctx.options.workspace or not self.has_local:
                raise
            if not _has_local_runs(ctx):
                error.message = f"no runs on this machine; {error.message}"
                raise
            ctx.output.say(f"the runs of this machine ({error.message})", style="dim")
            return list_local(ctx, tag)
        if self.has_local and _has_local_runs(ctx):
            result.next_steps.append(results.NextStep("runs of this machine", command="osmosis eval list --local"))
        return result

    def info(self, name: str, output: OutputFile = None, overwrite: Overwrite = False) -> results.DetailResult:
        return run_info(current(), self.kind, name, output)

    def wait(
        self,
        name: str,
        fail_under: FailUnder = None,
        timeout: Annotated[float | None, Option(min=0, help="Give up after this many seconds")] = None,
    ) -> results.OperationResult:
        client = current().client()
        detail = watch(current(), client.runs(self.kind), name, timeout_s=timeout)
        judged = judge_run(client, detail)
        return finished_result(f"{self.noun}.wait", detail, fail_under=fail_under, judged=judged)

    def logs(
        self,
        name: str,
        limit: Lines = 50,
        cursor: Cursor = None,
        follow: Annotated[bool, Option("--follow", "-f", help="Follow the log until the run is over")] = False,
        debug: Annotated[bool, Option(help="Also show debug lines")] = False,
    ) -> results.Result | None:
        return show_logs(current(), self.kind, name, limit=limit, cursor=cursor, follow=follow, debug=debug)

    def stop(self, name: str) -> results.OperationResult:
        ctx, operation = current(), f"{self.noun}.stop"
        runs = ctx.client().runs(self.kind)
        detail = runs.get(name)
        run = detail.run
        if run.over:
            return results.OperationResult(operation, f"run {run.name} is {run.status} already", run_state(detail))
        prompts.agree(ctx, f"Stop run {run.name}?", operation, **run_state(detail))
        runs.stop(run.name)
        detail = runs.get(run.name)
        message = f"run {run.name} is {detail.run.status if detail.run.over else 'stopping'}"
        return results.OperationResult(operation, message, run_state(detail))

    def edit(
        self,
        name: str,
        tag: Annotated[list[str] | None, Option(metavar="TAG", help="Add a tag. Repeatable")] = None,
        remove_tag: Annotated[list[str] | None, Option(metavar="TAG", help="Remove a tag")] = None,
        note: Annotated[str | None, Option(help="What to write on it; an empty text takes it away")] = None,
        rename: Annotated[str | None, Option("--name", metavar="NEW", help="Its new name")] = None,
        pin: Annotated[bool | None, Option("--pin/--unpin", help="Lists show a pinned run first")] = None,
        priority: Annotated[int | None, Option(min=-100, max=100, help="Place in the queue, highest first")] = None,
    ) -> results.OperationResult:
        marking = Marking.parse(tags=tag, remove_tags=remove_tag, note=note, name=rename, pinned=pin)
        if marking is None and priority is None:
            raise UsageError("nothing is given to change", hint=f"osmosis {self.noun} edit {name} --tag nightly")

        def edit_remote(client: PlatformClient, name: str) -> JsonObject:
            runs = client.runs(self.kind)
            full = runs.get(name).run.name
            order = {} if priority is None else runs.prioritize(full, priority).to_dict()
            return {"name": full, **order, **(runs.mark(full, marking).to_dict() if marking else {})}

        def edit_local(folder: Path) -> JsonObject:
            if priority is not None:
                raise UsageError(f"{folder.name} is a local run, which is in no queue", hint=f"platform:{name}")
            edited = mark(folder, marking or MarkChange())
            return {"name": edited.name, "folder": str(edited), **marks_of(edited).to_dict()}

        if not self.has_local:
            return marked_result(f"{self.noun}.edit", edit_remote(current().client(), name))
        return marked_result(
            f"{self.noun}.edit", RunFinder(current()).find(name, of_folder=edit_local, of_platform=edit_remote)
        )

    def delete(self, name: str) -> results.OperationResult:
        ctx = current()
        if not self.has_local:
            return delete_run(ctx, ctx.client(), name, kind=self.kind)
        return RunFinder(ctx).find(
            name,
            of_folder=functools.partial(_delete_local, ctx, name),
            of_platform=functools.partial(delete_run, ctx, kind=self.kind),
        )


def _document(method: Callable[..., object], text: str, *examples: str, name: object = None) -> Callable[..., object]:
    @functools.wraps(method)
    def command(**values: object) -> object:
        return method(**values)

    noun = method.__self__.noun  # type: ignore[attr-defined]  # a bound method
    parameters = [
        parameter.replace(annotation=name) if parameter.name == "name" else parameter
        # Not `get_type_hints`: Python 3.10 wraps what has the default None, and typer then sees no option.
        for parameter in inspect.signature(method, eval_str=True).parameters.values()
        if (parameter.name != "local" or noun == "eval") and (parameter.name != "tag" or noun in ("eval", "train"))
    ]
    command.__doc__ = f"{text}\n\nExample:" + "".join(f"\n    osmosis {noun} {example}" for example in examples)
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by typer
    command.__annotations__ = {}
    return command


EVAL_COMMANDS = RunCommands(
    "eval",
    run="run",
    info_help="Show one run: status, figures with confidence intervals, failures by phase and category.",
    keeps="finished rollouts are kept",
    produced="everything it produced",
)
TRAIN_COMMANDS = RunCommands(
    "training",
    run="training run",
    info_help="Show one training run: status, curves, checkpoints.",
    keeps="its checkpoints are kept",
    produced="its curves and checkpoints",
)
BENCHMARK_COMMANDS = RunCommands(
    "benchmark",
    run="benchmark run",
    info_help="Show one benchmark run and its agents, the best first; each is an evaluation of its own.",
    keeps="its agents stop too",
    produced="",
)

EVAL = SimpleNamespace(**EVAL_COMMANDS.commands)
TRAIN = SimpleNamespace(**TRAIN_COMMANDS.commands)


def retry(
    name: str, max_cost: float | None, max_tokens_total: int | None, *, secrets_file: str | None
) -> results.OperationResult:
    """Retry a run's failed and skipped rollouts on the platform; one without any is run again after a question."""
    ctx = current()
    if max_cost is not None and not 0 < max_cost < math.inf:
        raise UsageError(f"--max-cost must be greater than 0, got {max_cost}")
    secrets = read_secrets_file(ctx, secrets_file) if secrets_file else None
    request = RetryRun(secrets=secrets or None, max_cost=max_cost, max_tokens_total=max_tokens_total)
    client = ctx.client()
    detail = client.evals.get(name)
    run = detail.run.name
    prompts.agree(ctx, f"Retry the failed and skipped rollouts of {run}?", "eval.retry", **run_state(detail))
    try:
        answer = client.evals.retry(run, request)
    except NothingToRetry as nothing:
        prompts.agree(ctx, f"{nothing.message}. Run them again?", "eval.retry", default=False, **run_state(detail))
        answer = client.evals.retry(run, request.model_copy(update={"everything": True}))
    count = answer.retryable_samples
    message = f"{count} rollouts of {run} are queued again" if count else f"{run} restarts from the beginning"
    steps = [results.NextStep("follow it", command=f"osmosis eval wait {run}")]
    return results.OperationResult("eval.retry", message, answer.to_dict(), next_steps=steps)


def download(
    name: EvalName,
    output: Annotated[Path | None, Option("--output", "-o", help="Folder [default: .osmosis/evals/NAME]")] = None,
    types: Annotated[
        str,
        Option(
            "--type",
            help="metrics, trajectories, artifacts, logs, annotations, tokens, all",
            autocompletion=lambda: ["metrics", "trajectories", "artifacts", "logs", "all"],
        ),
    ] = "metrics,trajectories",
    labels_into: Annotated[str | None, Option(metavar="RUN", help="Add its labels to this local run")] = None,
    rows: Annotated[str | None, Option(help="Only these row indices: 3,7,10-20")] = None,
    overwrite: Annotated[bool, Option(help="Download existing files again")] = False,
) -> results.OperationResult:
    """Download the metrics and conversations of a run.

    Example:
        osmosis eval download multiply-1
        osmosis eval download multiply-1 --type all --rows 0-9 -o results
        osmosis eval download nightly --type annotations --labels-into nightly
    """
    return download_run(
        current(), name, types=types, output=output, rows=rows, overwrite=overwrite, labels_into=labels_into
    )


def run_info(ctx: AppContext, kind: RunKind, name: str, output: Path | None = None) -> results.DetailResult:
    client = ctx.client()
    runs = client.runs(kind)
    detail = runs.get(name)
    try:
        metrics = runs.metrics(name)
    except NotFound:
        metrics = None
    checkpoints = client.trainings.checkpoints(detail.run.name) if kind == "training" else []
    data: JsonObject = {**detail.to_dict(), "summary": detail.to_summary().to_dict()}
    data["metrics"] = metrics.to_dict() if metrics is not None else None
    steps = []
    if not detail.run.over:
        steps.append(results.NextStep("follow it", command=f"osmosis {NOUNS[kind]} wait {detail.run.name}"))
    elif detail.failure:
        steps.append(results.NextStep("retry it", command=f"osmosis {NOUNS[kind]} resume {detail.run.name}"))
    if isinstance(metrics, TrainingMetrics):
        data["figures"] = {figure.name: figure.value for figure in list_figures(metrics)}
        data["checkpoints"] = [row.to_dict() for row in checkpoints]
        if checkpoints and detail.run.over:
            steps += model_steps(detail)

    def draw(console: Console) -> None:
        draw_detail(detail)(console)
        if isinstance(metrics, TrainingMetrics):
            console.print()
            console.print(figure_table("training", list_figures(metrics)))
            console.print()
            draw_curves(console, metrics)
        if checkpoints:
            console.print()
            draw_list(console, results.ListResult(data["checkpoints"], CHECKPOINT_COLUMNS))

    result = results.DetailResult(data, human=draw, next_steps=steps)
    if output:
        result.extra = {"output": str(write_json(ctx.path(output), result.envelope()))}
    return result


def list_local(ctx: AppContext, tag: str | None = None) -> results.ListResult:
    from osmosis.cli.eval.report import list_local_runs  # brings the journal, which no run of a platform has

    return list_local_runs(ctx, tag)


def _has_local_runs(ctx: AppContext) -> bool:
    return next(runs_folder(ctx.cwd).glob("*/run.json"), None) is not None


def write_json(path: Path, body: Mapping[str, object]) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(results.to_json(body) + "\n")
    except OSError as error:
        raise ValidationError(f"cannot write {path}: {error.strerror}", hint="-o FILE") from error
    return path


def run_state(detail: RunDetail) -> JsonObject:
    return {**run_ref(detail), "status": detail.run.status}


def delete_run(ctx: AppContext, client: PlatformClient, name: str, *, kind: RunKind) -> results.OperationResult:
    operation, runs = f"{NOUNS[kind]}.delete", client.runs(kind)
    detail = runs.get(name)
    run = detail.run
    _check_full_name(name, (run.name, run.id), NOUNS[kind])
    prompts.agree(ctx, f"Delete run {run.name} and everything it produced?", operation, **run_state(detail))
    runs.delete(run.name)
    return results.OperationResult(operation, f"run {run.name} is deleted", {**run_ref(detail), "status": run.status})


def _delete_local(ctx: AppContext, name: str, folder: Path) -> results.OperationResult:
    from osmosis.engine.journal import Journal  # no run of a platform has one

    _check_full_name(name, (folder.name, str(folder), name if "/" in name else ""), "eval")
    prompts.agree(ctx, f"Delete the local run {folder.name}, {folder}?", "eval.delete", name=folder.name)
    journal = Journal(folder)
    journal.lock()  # refused while it is going on
    journal.close()
    shutil.rmtree(folder)
    return results.OperationResult("eval.delete", f"local run {folder.name} is deleted", {"name": folder.name})


def _check_full_name(name: str, full: tuple[str, ...], noun: str) -> None:
    if current().options.yes and name not in full:
        message = f"{name!r} stands for {full[0]}, and --yes deletes only a run that is named in full"
        raise UsageError(message, hint=f"osmosis {noun} delete {full[0]} --yes")


def share(
    name: EvalName,
    expires: Annotated[str, Option(help=f"Lifetime, such as 12h or 7d; at most {MAX_SHARE_DAYS}d")] = "7d",
    show_links: Annotated[bool, Option("--list", help="List its links, never their addresses")] = False,
    revoke: Annotated[str | None, Option(metavar="ID", help="Revoke a link, which stops working at once")] = None,
) -> ListResult | OperationResult:
    """Create a link with which anybody reads the report and the rollouts of a run, without an account.

    It shows neither configuration, log and files of the run nor anything else, and is printed this once. Only its
    hash is stored; people who may submit runs may create and revoke links, and the audit log says who did.

    Example:
        osmosis eval share multiply-1
        osmosis eval share multiply-1 --expires 30d
        osmosis eval share latest --json
        osmosis eval share multiply-1 --list
        osmosis eval share multiply-1 --revoke 2f1c0a
    """
    ctx, lifetime_s = current(), parse_lifetime(expires, MAX_SHARE_DAYS)
    client = ctx.client()
    run = client.evals.get(name).run.name
    if show_links or revoke is not None:
        links = client.evals.share_links(run)
    if show_links:
        columns = [Column("id", "Id"), Column("creator_name", "By"), Column("expires_at", "Expires", show=when)]
        return ListResult([link.to_dict() for link in links], columns, empty=f"no links: osmosis eval share {run}")
    if revoke is not None:
        matches = [link.id for link in links if link.id.startswith(revoke)]
        link_id = matches[0] if len(matches) == 1 else revoke
        prompts.agree(ctx, f"Revoke link {link_id} to {run}?", "eval.share", id=link_id)
        client.evals.unshare(run, link_id)
        return OperationResult("eval.share", f"the link to {run} is revoked", {"id": link_id})
    link = client.evals.share(run, lifetime_s)
    message = f"whoever has this link can read {run} until {when(link.expires_at)}; it is shown this once:\n{link.url}"
    steps = [NextStep("take it back", command=f"osmosis eval share {run} --revoke {link.id}")]
    return OperationResult("eval.share", message, link.to_dict(), next_steps=steps)


def schedules(
    stop: Annotated[str | None, Option(metavar="NAME", help="Stop a schedule; its runs stay")] = None,
) -> ListResult | OperationResult:
    """List the evaluations that the platform repeats, or stop one.

    Submitting a config with `[schedule] every = "1d"` begins one. Each run is of the newest synced commit and has the
    secrets of the workspace only.

    Example:
        osmosis eval schedules
        osmosis eval schedules --stop nightly
    """
    ctx = current()
    client = ctx.client()
    if stop is not None:
        prompts.agree(ctx, f"Stop schedule {stop}?", "eval.schedules", name=stop)
        client.evals.stop_schedule(stop)
        return OperationResult("eval.schedules", f"schedule {stop} is stopped; its runs stay", {"name": stop})
    rows = client.evals.schedules()
    columns = [*build_columns("name=Name", "every=Every"), Column("next_at", "Next run", show=when)]
    columns += build_columns("last_run_name=Last run", "last_run_status=Status", "creator_name=By", "error=Problem")
    empty = 'no schedules: write [schedule] with every = "1d" in a config, then: osmosis eval submit CONFIG'
    return ListResult([row.to_dict() for row in rows], columns, empty=empty)
