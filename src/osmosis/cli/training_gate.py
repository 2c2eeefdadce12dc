"""Before a training run is submitted: will it train? What the platform read off an evaluation, said and judged.

Only what makes learning impossible stops a submit, and `--force` submits all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from osmosis.errors import ValidationError
from osmosis.records.contract.training_bodies import TrainingCheck

from .context import AppContext

if TYPE_CHECKING:
    from osmosis.client import PlatformClient


def check_training(
    ctx: AppContext, client: PlatformClient, body: Mapping[str, object], *, force: bool, eval_run: str | None = None
) -> TrainingCheck:
    """What a config comes to, by the named evaluation or the newest; what is worth a warning is said. ValidationError
    when nothing could be learned."""
    found = client.trainings.check(body, eval_run=eval_run)
    for finding in found.findings:
        text = f"{finding.what} (fix: {finding.fix})" if finding.fix else finding.what
        if finding.severity == "info":
            ctx.output.say(text, style="dim")
        elif finding.severity == "warning" or force:
            ctx.output.warn(finding.code.upper().replace("-", "_"), text)
    if found.hopeless and not force:
        first = found.hopeless[0]
        issues = [{"key": one.code, "message": one.what, "fix": one.fix} for one in found.hopeless]
        what = f"not submitted: {first.what}"
        raise ValidationError(what, hint=f"{first.fix}; --force submits all the same", issues=issues)
    return found


def plan_lines(found: TrainingCheck) -> dict[str, object]:
    """What a config comes to, for the person who confirms."""
    each = found.rollouts_per_step
    if found.examples is not None:
        return {
            "examples": f"{found.examples} rollouts of {found.eval_run} ({found.eval_model})",
            "steps": f"{found.steps} of {each} examples; {found.total_rollouts} rollouts for validation",
        }
    rows = f"{found.training_rows} to train on, {found.validation_rows} for validation"
    lines: dict[str, object] = {
        "rows": rows,
        "steps": f"{found.steps} of {each} rollouts, {found.total_rollouts} in all with validation",
    }
    if found.eval_run:
        lines["evidence"] = f"{found.eval_run} ({found.eval_model}): {_evidence(found)}"
    if found.least_s:
        lines["time"] = f"at least {_duration(found.least_s)} for the rollouts, side by side; updates come on top"
    return lines


def _evidence(found: TrainingCheck) -> str:
    parts = [f"{found.tried_rollouts} rollouts"]
    if found.mean_reward is not None:
        parts.append(f"mean reward {found.mean_reward:.2f}")
    if found.no_signal is not None:
        parts.append(f"no signal in {found.no_signal:.0%} of {found.tried_groups} rows")
    if found.failed:
        parts.append(f"{found.failed:.0%} failed")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
