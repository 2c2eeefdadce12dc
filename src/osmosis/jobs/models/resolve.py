"""The model of an evaluation run, opened from the config and probed before any row is spent. The key is the secret that
`[advanced].api_key_env` names, or the one under the provider's own name. It is passed as an argument of the calls: the
environment of this process has neither secrets nor `[env]`."""

import asyncio
from collections.abc import Mapping

from osmosis.base.net import is_loopback
from osmosis.errors import ModelError, OsmosisError
from osmosis.jobs.context import JobFailed, setup_failure
from osmosis.llm import Completion, Model, Signals, open_model, probe
from osmosis.llm.providers import price_of
from osmosis.records.run.plan import EvalPlan, ModelSpec
from osmosis.records.run.rollout import Category, Failure, Phase

PROBE_TIMEOUT_S = 180.0
DEFAULT_KEY = "OPENAI_API_KEY"


def api_key(spec: ModelSpec, secrets: Mapping[str, str]) -> str | None:
    if spec.api_key_env:
        if spec.api_key_env not in secrets:
            raise setup_failure(
                f"[advanced].api_key_env names {spec.api_key_env}, which is not a secret of the run",
                fix=f"add it to [secrets].required and store its value: `osmosis secret set {spec.api_key_env}`",
                category=Category.AUTH,
            )
        return secrets[spec.api_key_env]
    return secrets.get(DEFAULT_KEY) if spec.kind == "openai" else None


def open_plan_model(plan: EvalPlan, secrets: Mapping[str, str], *, signals: Signals | None = None) -> Model:
    return open_model(
        plan.model,
        api_key=api_key(plan.model, secrets),
        provider_variables=secrets,
        retry=plan.retry,
        timeout_s=plan.timeouts.model_s,
        signals=signals,
    )


async def probe_model(model: Model, plan: EvalPlan) -> None:
    try:
        _check_budget(plan, await asyncio.wait_for(probe(model), PROBE_TIMEOUT_S))
    except JobFailed:
        raise
    except ModelError as problem:
        raise _unusable(plan.model, Category(problem.category), problem.message, problem.hint) from problem
    except asyncio.TimeoutError:
        message = f"no answer within {PROBE_TIMEOUT_S:.0f} s"
        raise _unusable(plan.model, Category.TIMEOUT, message, "check that the endpoint works, then retry") from None
    except OsmosisError as problem:
        raise _unusable(plan.model, Category.UNKNOWN, problem.message, problem.hint) from problem


def _check_budget(plan: EvalPlan, answer: Completion | None) -> None:
    money = {"max_cost": plan.budget.max_cost_usd, "max_cost_per_rollout": plan.limits.max_cost_usd}
    tokens = {"max_tokens_total": plan.budget.max_total_tokens, "max_tokens_per_rollout": plan.limits.max_tokens}
    model, counted = plan.model, {key for key, limit in {**money, **tokens}.items() if limit is not None}
    if not counted or model.kind in ("offline", "replay"):
        return
    if answer is not None and not answer.usage.total_tokens and not answer.usage.cost_usd:
        reason = f"{model.name} does not report what its calls use"
        raise _unenforceable(min(counted), reason, "limit rows or time instead: limit, wall_s in [advanced.resources]")
    if counted & set(money) and price_of(model, local=is_loopback(model.base_url)) is None:
        reason = f"the price of {model.name} is unknown"
        raise _unenforceable(
            min(counted & set(money)), reason, "limit tokens instead: max_tokens_total, max_tokens_per_rollout"
        )


def _unenforceable(key: str, reason: str, fix: str) -> JobFailed:
    return setup_failure(f"{reason}, so [evaluation].{key} cannot be kept", fix=fix, category=Category.BUDGET)


def _unusable(spec: ModelSpec, category: Category, message: str, hint: str | None) -> JobFailed:
    where = f" at {spec.base_url}" if spec.base_url else ""
    return JobFailed(
        Failure(
            phase=Phase.SETUP,
            category=category,
            message=f"the model {spec.name}{where} cannot be used: {message}",
            fix=hint or "check [experiment].model_path, [advanced] and the secrets of the run",
        )
    )
