"""A deployed model in an evaluation, called through the platform with the lease of the run. If it is undeployed
meanwhile, the job loads the same weights itself and goes on."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from osmosis.errors import ModelError
from osmosis.jobs.context import JobContext
from osmosis.llm import ChatRequest, Completion, Model, open_model, probe
from osmosis.records.run.plan import EvalPlan, ModelSpec
from osmosis.records.run.rollout import Category

from .local import STEP, ServingProgram, open_local_model


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
