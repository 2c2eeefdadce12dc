import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from osmosis.base.jsonable import JsonObject
from osmosis.cli.core import prompts
from osmosis.cli.core.context import AppContext
from osmosis.cli.core.results import Column, ListResult, OperationResult
from osmosis.cli.eval.flags import BY_NAME, RunFlags
from osmosis.cli.eval.plan import parse_concurrency, sampling
from osmosis.cli.eval.runs import write_json
from osmosis.cli.eval.submit import submit_config
from osmosis.cli.eval.submit_checks import SubmitOptions
from osmosis.cli.eval.transfer import download_run
from osmosis.errors import NotFound, OsmosisError, UsageError, WorkspaceRequired
from osmosis.records.api.runs import RunRow
from osmosis.records.run.history import EvalSet, SetRun
from osmosis.workspace.config_file import load_eval_config
from osmosis.workspace.layout import Workspace, find_workspace

COLUMNS = [
    Column("run", "run"),
    Column("name", "name", wide=True),
    Column("status", "status"),
    Column("platform_url", "page", wide=True),
    Column("error", "problem"),
]


def run_on_platform(ctx: AppContext, flags: RunFlags, config: str | None, url: str) -> OperationResult:
    _refuse_local_flags(flags)
    remote = replace(ctx, options=replace(ctx.options, platform=url))
    values = flags.settings
    options = replace(
        SubmitOptions.from_flags("eval", flags),
        config=config,
        wait=True,
        snapshot=True,
        n=values.get("n"),
        limit=values.get("limit"),
        max_cost=values.get("max_cost"),
        batch_size=parse_concurrency(values["batch_size"])[0] if "batch_size" in values else None,
        params=sampling(values, flags.param),
        every_row=True,
    )
    result = submit_config(remote, options)
    name = result.resource.get("name")
    if result.status == "cancelled" or not isinstance(name, str):
        return result
    download = download_run(remote, name, types="metrics,trajectories,logs")
    if flags.output is not None:
        write_json(ctx.path(flags.output), result.resource)
    remote.output.say(download.message, style="dim")
    resource, code = {**result.resource, "download": download.resource}, max(result.exit_code, download.exit_code)
    return replace(result, operation="eval.run", resource=resource, exit_code=code)


_REMOTE = ("n", "limit", "rows", "max_cost", "batch_size", "temperature", "top_p", "max_tokens", "seed")


def _refuse_local_flags(flags: RunFlags) -> None:
    for flag, is_given, hint in (
        ("--dataset-file", flags.dataset, "osmosis dataset upload FILE; the run reads the platform's dataset"),
        ("--rows", flags.settings.get("rows"), "--limit N runs the first rows"),
        ("--workers", flags.workers != "1", "--shards N cuts the rows into jobs"),
        ("--retry-failed", flags.retry_failed, "osmosis eval resume NAME"),
        ("--upload", flags.upload, "leave it out: the run is there already"),
        ("--export", flags.export, "write [export] into the config"),
        ("--fresh", flags.fresh, "choose another --name"),
        ("--set", flags.set, "write it into the config"),
        *(
            (BY_NAME[name].label, name not in _REMOTE, "write it into the config, or into the rollout")
            for name in flags.settings
        ),
    ):
        if is_given:
            raise UsageError(f"{flag} and --on cannot be used together", hint=hint)


def refuse_agent(ctx: AppContext, flags: RunFlags, url: str) -> UsageError:
    reason = "--on runs a config of a workspace, and these flags name code and rows of this folder"
    try:
        workspace = find_workspace(ctx.cwd)
    except WorkspaceRequired:
        return UsageError(reason, hint="osmosis init --here --platform, then osmosis rollout new NAME")
    parts = Path(workspace.relative(ctx.path((flags.module or "").rpartition(":")[0] or "."))).parts
    rollout = parts[1] if len(parts) > 1 and parts[0] == "rollouts" else None
    configs = [workspace.relative(path) for path in _find_configs(workspace, rollout)]
    if not configs:
        return UsageError(reason, hint="osmosis rollout new NAME makes one, with its config under configs/eval/")
    return UsageError(reason, hint=" or ".join(_command(config, flags, url) for config in configs))


def _find_configs(workspace: Workspace, rollout: str | None) -> Iterator[Path]:
    for _, path in workspace.configs("eval"):
        try:
            config, _ = load_eval_config(path, workspace.root)
        except OsmosisError:
            continue
        if rollout in (None, config.experiment.rollout):
            yield path


def _command(config: str, flags: RunFlags, url: str) -> str:
    words = ["osmosis", "eval", "run", config, "--on", url]
    for flag, value in (
        ("--model", flags.model),
        ("--base-url", flags.base_url),
        *((BY_NAME[name].label, flags.settings.get(name)) for name in ("n", "limit", "batch_size", "max_cost")),
        ("--name", flags.name),
        ("--fail-under", flags.fail_under),
        ("-o", flags.output),
    ):
        if value is not None:
            words += [flag, str(value)]
    for value in flags.param:
        words += ["--param", value]
    return shlex.join(words)


@dataclass(frozen=True)
class SetSubmit:
    eval_set: EvalSet
    runs: Sequence[tuple[str, SetRun]]
    tag: str
    secrets_file: str | None = None


def submit_set(ctx: AppContext, url: str, submit: SetSubmit) -> ListResult:
    for key in ("prices", "arms"):
        if getattr(submit.eval_set, key):
            raise UsageError(f"{key} of a set count on this machine only", hint=f"leave {key} out with --on")
    remote = replace(ctx, options=replace(ctx.options, platform=url))
    if not prompts.confirm(ctx, f"Submit the {len(submit.runs)} runs of this set to {url}?"):
        return ListResult([], COLUMNS)
    remote.options = replace(remote.options, yes=True)
    lines = [_submit_line(remote, submit, name, run) for name, run in submit.runs]
    return ListResult(lines, COLUMNS, exit_code=1 if any(line.get("error") for line in lines) else 0)


def _submit_line(ctx: AppContext, submit: SetSubmit, name: str, run: SetRun) -> JsonObject:
    line: JsonObject = {"run": run.key, "name": name, "tag": submit.tag}
    if (row := _find_run(ctx, name)) is not None:
        return {**line, "status": row.status, "platform_url": row.platform_url}
    eval_set = submit.eval_set
    options = SubmitOptions(
        "eval",
        run.config,
        snapshot=True,
        secrets_file=submit.secrets_file,
        model=run.model,
        n=eval_set.n,
        limit=eval_set.limit,
        name=name,
        tags=(submit.tag,),
        # In equal parts, so that all runs together never spend more.
        max_cost=None if eval_set.max_cost is None else eval_set.max_cost / len(submit.runs),
        params=run.params,
        every_row=True,
    )
    try:
        resource = submit_config(ctx, options).resource
    except OsmosisError as error:
        return {**line, "error": error.message}
    return {**line, "status": resource.get("status"), "platform_url": resource.get("url")}


def _find_run(ctx: AppContext, name: str) -> RunRow | None:
    try:
        row = ctx.client().evals.get(name).run
    except NotFound:
        return None
    return row if row.name == name else None
