"""A submit, of either kind of run: check everything first, ask once, then one POST.

Nothing is sent when something would make the run other than what the person means; each finding names its fix,
and `--json` carries the same as data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from osmosis.errors import AuthRequired
from osmosis.workspace.config_file import check_file, locate
from osmosis.workspace.layout import Workspace, find_workspace, pick_config
from osmosis.workspace.preflight import gather

from . import prompts
from .context import AppContext
from .results import OperationResult
from .submit_answer import printed, submitted
from .submit_case import SubmitCase, SubmitOptions, push, request_body
from .submit_checks import check_code, check_scope, invalid_config, logged_out, refusal, say_findings
from .submit_plan import row_count, show_plan, submit_plan
from .submit_questions import SubmitQuestions
from .submit_secrets import ask_for_secrets, find_secrets

WaitSync = Annotated[bool, typer.Option("--wait-sync", help="Wait until the platform has synced HEAD")]
AllowDirty = Annotated[bool, typer.Option("--allow-dirty", help="Run the synced commit despite local changes")]
SnapshotOption = Annotated[
    bool, typer.Option("--snapshot", help="Run the working tree as it is, without a commit on your branch")
]


@dataclass(frozen=True, slots=True)
class SubmitVerdict:
    """What a check of one kind of run has found: lines of the plan, and what `--json` has of it."""

    lines: Mapping[str, object] = field(default_factory=dict)
    printed: Mapping[str, object] = field(default_factory=dict)


def submit_config(
    ctx: AppContext, options: SubmitOptions, check: Callable[[SubmitCase], SubmitVerdict] = lambda _: SubmitVerdict()
) -> OperationResult:
    """Check, confirm and submit; with `wait`, follow the run to its end. `check` is what only this kind of run needs:
    it raises what forbids the submit."""
    workspace = find_workspace(ctx.cwd)
    path = _config_path(ctx, workspace, options)
    file = locate(path, workspace, options.kind)
    config, said = check_file(file, workspace)
    if config is None or any(p.severity == "error" for p in said):
        raise invalid_config(ctx, options, workspace, file, said)
    say_findings(ctx, said)
    config = options.overrides.apply(config)
    try:
        opened = ctx.client()
    except AuthRequired as login:
        raise logged_out(options, workspace, config.experiment, login) from login
    with opened as client:
        asked = SubmitQuestions(client, config)
        facts = gather(workspace.root, config.experiment)
        case = SubmitCase(ctx, options, client, workspace, path, config, facts, asked)
        check_scope(case)
        if errors := check_code(case):
            raise refusal(case, errors)
        missing = find_secrets(case)
        if missing and not ctx.interactive:
            raise refusal(case, [], missing)
        ask_for_secrets(case, missing)
        case.dataset_rows = row_count(case)
        case.config = options.overrides.whole(config, case.dataset_rows)
        plan, verdict = submit_plan(case), check(case)
        show_plan(ctx, {**plan, **verdict.lines})
        if not prompts.confirm(ctx, f"Submit this {options.noun} run?", yes=options.yes):
            return OperationResult(f"{options.noun}.submit", "Cancelled.", status="cancelled")
        push(case)
        answer = client.submits.submit(options.kind, request_body(case))
        news = f"submitted {answer.name}: {answer.platform_url or ''}"
        if not options.wait:
            ctx.output.say(news)
            return submitted(case, answer, verdict.printed)
        from .run_show import finished_result, judged_there, watch  # the run has begun: nobody waits for this

        seen = watch(ctx, client.runs(options.kind), answer.name, news=news)
        counted = judged_there(client, seen)
    shown = {**printed(case, answer).to_dict(), **verdict.printed}
    bar = options.fail_under
    return finished_result(f"{options.noun}.submit", seen, fail_under=bar, counted=counted, resource=shown)


def _config_path(ctx: AppContext, workspace: Workspace, options: SubmitOptions) -> Path:
    if options.config and (ctx.path(options.config).exists() or options.config.endswith(".toml")):
        from_top = workspace.root / options.config  # as every message shows it
        return from_top if not ctx.path(options.config).exists() else ctx.path(options.config)
    found = pick_config(workspace, options.kind, options.config)
    return found if found.is_absolute() else ctx.path(found)
