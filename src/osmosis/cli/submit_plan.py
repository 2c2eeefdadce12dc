"""What a submit is about to run, for the person who confirms: the code, the model, how many of the rows."""

from __future__ import annotations

from collections.abc import Mapping

from osmosis.errors import NotFound
from osmosis.records.config import EvalConfig
from osmosis.records.row_sample import sampled

from .context import AppContext
from .submit_case import SubmitCase

FEW_ROWS = 20


def row_count(case: SubmitCase) -> int | None:
    try:
        return case.asked.dataset.row_count
    except NotFound:
        return None  # the submit says so, with everything else that is wrong


def submit_plan(case: SubmitCase) -> dict[str, object]:
    """What will run, for the person who confirms."""
    config, source = case.config, case.facts.source
    experiment = config.experiment
    code = "HEAD " + str(source.commit)[:12] if source else "?"
    if case.snapshot is not None:
        code = f"snapshot {case.snapshot.commit[:12]} of this working tree"
    elif experiment.commit_sha or experiment.branch:
        code = f"commit {experiment.commit_sha}" if experiment.commit_sha else f"branch {experiment.branch}"
    plan: dict[str, object] = {
        "name": case.options.overrides.name,
        "tags": ", ".join(case.options.overrides.tags) or None,
        "config": case.workspace.relative(case.path),
        "platform": case.ctx.platform_url,
        "rollout": f"{experiment.rollout} ({experiment.entrypoint})",
        "code": code,
        "model": experiment.model_path,
        "dataset": experiment.dataset,
    }
    if isinstance(config, EvalConfig):
        plan["rows"] = _rows(case, config)
    plan["env"] = ", ".join(sorted(config.env)) or None
    plan["secrets"] = ", ".join(config.secret_names()) or None
    return plan


def _rows(case: SubmitCase, config: EvalConfig) -> str:
    """How many rows run, and of how many; a remark where they are too few for a verdict."""
    wanted, total = config.evaluation, case.dataset_rows
    each = f"x {wanted.n} attempts, {wanted.batch_size} at once"
    if not total:
        return f"{f'the first {wanted.limit}' if wanted.limit else 'a random 10 %'} {each}"
    count = sampled(total, wanted.limit)
    how = "" if count == total else f" (the first {count})" if wanted.limit else " (a random 10 %)"
    if count < min(total, FEW_ROWS):
        what = f"{count} of {total} rows run{how}: too few to tell one agent from another"
        case.ctx.output.warn("FEW_ROWS", f"{what}; for more: --limit {min(total, FEW_ROWS)}, or limit in [evaluation]")
    return f"{count} of {total}{how} {each}"


def show_plan(ctx: AppContext, plan: Mapping[str, object]) -> None:
    for key, value in plan.items():
        if value:
            ctx.output.say(f"  {key:<9} {value}")
