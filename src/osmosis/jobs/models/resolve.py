"""The model of an evaluation, probed before any row is spent. Keys are arguments: this process's environment has none.
If a deployed model is undeployed meanwhile, the job loads the same weights itself."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from osmosis.base.net import is_loopback
from osmosis.errors import ModelError, OsmosisError
from osmosis.jobs.context import JobContext, JobFailed, get_secret, setup_failure
from osmosis.jobs.models.local import STEP, ServingProgram, open_local_model
from osmosis.llm import ChatRequest, Completion, Model, Signals, open_model, probe
from osmosis.llm.providers import price_of
from osmosis.records.run.plan import EvalPlan, ModelSpec
from osmosis.records.run.rollout import Category, Failure, Phase

PROBE_TIMEOUT_S = 180.0
DEFAULT_KEY = "OPENAI_API_KEY"


def api_key(spec: ModelSpec, secrets: Mapping[str, str]) -> str | None:
    if spec.api_key_env:
        return get_secret(secrets, "api_key_env", spec.api_key_env)
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


@asynccontextmanager
async def open_platform_model(
    context: JobContext, plan: EvalPlan, program: ServingProgram | None = None
) -> AsyncIterator[Model]:
    async with AsyncExitStack() as stack:

        async def load() -> Model:
            loading = open_local_model(context, plan.model, concurrency=plan.concurrency, program=program)
            return await stack.enter_async_context(loading)

        if not context.spec.deployed:
            yield await load()
            return
        model = DeployedModel(context, plan, load)
        stack.push_async_callback(model.close)
        await model.first_answer()
        yield model


class DeployedModel:
    def __init__(self, context: JobContext, plan: EvalPlan, load: Callable[[], Awaitable[Model]]) -> None:
        self.spec = plan.model
        self._log = context.log
        self._load = load
        base_url = f"{context.spec.platform_url}/v1"
        spec = ModelSpec(
            name=plan.model.name, kind="openai", base_url=base_url, params=plan.model.params, price=(0.0, 0.0)
        )
        key, limit_s = context.handover.token, plan.timeouts.model_s
        self._remote = open_model(spec, api_key=key, retry=plan.retry, timeout_s=limit_s)
        self._own: Model | None = None
        self._loading = asyncio.Lock()

    async def first_answer(self) -> None:
        """Probe the deployment; load the model if it does not answer, before any row is spent."""
        try:
            await probe(self._remote)
            self._log.write(STEP, f"{self.spec.name} is deployed: the deployment answers")
        except ModelError as problem:
            await self._load_own(f"the deployment of {self.spec.name} does not answer ({problem.message})")

    async def complete(self, request: ChatRequest) -> Completion:
        if self._own is None:
            try:
                return await self._remote.complete(request)
            except ModelError as error:
                if error.category != Category.MODEL_NOT_FOUND.value or request.told:
                    raise
        own = await self._load_own(f"{self.spec.name} is not deployed any more")
        return await own.complete(request)

    async def close(self) -> None:
        await self._remote.close()

    async def _load_own(self, reason: str) -> Model:
        async with self._loading:
            if self._own is None:
                self._log.write(STEP, f"{reason}: loading it for this run", "warning")
                self._own = await self._load()
            return self._own
