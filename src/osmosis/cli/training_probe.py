"""`osmosis train submit --probe N`: an evaluation of the base model on N rows, run now, from which it is read whether
there is something to learn.

It is an ordinary evaluation of the platform, listed and kept like any other: same rollout, code, dataset, environment
and secrets, the base model sampled as training samples it, as many attempts at a row, all of them at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from osmosis.errors import PlatformError, ValidationError
from osmosis.records.config import EvalConfig, Evaluation, Secrets, TrainingConfig
from osmosis.records.plan import PLATFORM_MODEL

from .context import AppContext
from .run_show import watch

if TYPE_CHECKING:
    from osmosis.client import PlatformClient

MOST_AT_ONCE = 4096


def probe_config(config: TrainingConfig, rows: int) -> EvalConfig:
    """The evaluation. ValidationError where the platform has no base model to ask."""
    training, sampling, advanced = config.training, config.sampling, config.advanced
    if advanced.engine != "trl":
        raise ValidationError(
            f'--probe asks the base model on the platform, and with engine = "{advanced.engine}" it is elsewhere',
            hint="evaluate it there: an eval config with [advanced] base_url, then submit without --probe",
        )
    if advanced.method != "grpo":
        raise ValidationError(
            '--probe says whether new rollouts would differ, and method = "sft" makes none',
            hint="submit without --probe",
        )
    return EvalConfig(
        experiment=config.experiment.model_copy(update={"model_path": PLATFORM_MODEL + config.experiment.model_path}),
        evaluation=Evaluation(
            limit=rows,
            n=min(training.n_samples_per_prompt, 1000),
            batch_size=min(rows * training.n_samples_per_prompt, MOST_AT_ONCE),
            agent_workflow_timeout_s=training.agent_workflow_timeout_s,
            grader_timeout_s=training.grader_timeout_s,
        ),
        advanced={
            "network": advanced.network,
            "params": {
                "temperature": sampling.rollout_temperature,
                "top_p": sampling.rollout_top_p,
                "max_tokens": training.max_response_length,
            },
        },
        secrets=config.secrets or Secrets(required=[]),
        env=config.env,
    )


def probed(ctx: AppContext, client: PlatformClient, body: dict[str, object], config: EvalConfig) -> str:
    """Submits the evaluation and follows it to its end; its name. PlatformError when it came to nothing."""
    wanted = config.evaluation
    sent = client.submits.submit("eval", body)
    ctx.output.say(f"probing {wanted.limit} rows x {wanted.n} rollouts with the base model: {sent.name}")
    seen = watch(ctx, client.evals, sent.name)
    if seen.run.status != "finished":
        why = f": {seen.failure.message}" if seen.failure else ""
        what = f"not submitted: the probe {sent.name} is {seen.run.status}{why}"
        raise PlatformError(what, hint=f"osmosis eval logs {sent.name}; or submit without --probe")
    return sent.name
