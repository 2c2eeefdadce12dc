"""Open the model of a job. One of the platform runs in a process of the trainer's environment, without network, lease
or secret, and is restarted when it dies; that of an evaluation is probed before any row is spent."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from osmosis.base.locks import locked_async
from osmosis.base.model_folder import check_model, check_tokenizer
from osmosis.base.net import backoff_delay, is_loopback
from osmosis.base.processes import end_tasks, wait_for_first
from osmosis.errors import ModelError, OsmosisError, ValidationError
from osmosis.jobs.commands import machine_environ, run_command
from osmosis.jobs.context import TAIL_LINES, JobContext, JobFailed, get_secret, setup_failure
from osmosis.jobs.prepare.environment import explain_output, is_network_failure
from osmosis.jobs.sandboxes import JobSandbox
from osmosis.jobs.trainer.environment import TrainerEnvironment, load_trainer_environment
from osmosis.jobs.trainer.process import TrainerCommand, TrainerProcess, trainer_environ
from osmosis.llm import ChatRequest, Completion, Model, Signals, open_model, probe
from osmosis.llm.providers import price_of
from osmosis.records.config.run_config import TrainingConfig
from osmosis.records.run.plan import EvalPlan, ModelSpec
from osmosis.records.run.rollout import Category, Failure, Phase
from osmosis.training.models import ServedModel
from osmosis.training.protocol.client import TrainerClient
from osmosis.training.protocol.messages import TrainerHealth
from osmosis.training.protocol.plans import ServingPlan

STEP = "model-server"
LOAD_S = 1800.0
POLL_S = 0.2
DEATHS_IN_A_ROW = 5
STEADY_S = 60.0
RESTART_BASE_S, RESTART_MAX_S = 0.25, 30.0
ASKED_AGAIN = 2  # Repeats of a request that a death cut off: the request itself may be the cause
PATIENCE_S = 120.0

FETCH_STEP = "base-model"
FETCH_S = 6 * 3600.0
FETCH = """
import sys
from huggingface_hub import snapshot_download
print(snapshot_download(sys.argv[1], local_dir=sys.argv[2], allow_patterns=sys.argv[3:]))
"""
TEXTS = ("*.json", "*.txt", "*.jinja", "*.model")
ALL = (*TEXTS, "*.safetensors")
MARKER = ".complete"


@dataclass(frozen=True, slots=True)
class ServingProgram:
    made: TrainerEnvironment | None = None
    module: str = "osmosis.training.trainer.serve_model"


@asynccontextmanager
async def open_local_model(
    context: JobContext, spec: ModelSpec, *, concurrency: int, program: ServingProgram | None = None
) -> "AsyncIterator[LocalModelProcess]":
    program = program or ServingProgram()
    environment = program.made or await load_trainer_environment(context)
    folder = await base_model_folder(context, environment.python)
    adapter = context.spec.adapter_path or None
    plan = ServingPlan(name=spec.name, model_path=str(folder), adapter_path=adapter, concurrency=max(concurrency, 1))
    sandbox = JobSandbox.for_model(context.spec)
    context.log.write(STEP, f"sandbox of {spec.name}: {sandbox.description}")
    if context.spec.kind == "serving":
        context.progress.sandbox = sandbox.description
    read = (environment.code, folder, *([Path(adapter)] if adapter else []))
    process = TrainerProcess(
        TrainerCommand(environment.python, environment.code, module=program.module),
        trainer_environ(context.environ, environment.code),
        context.work_dir / STEP,
        context.log,
        context.leftovers,
        sandbox.process_policy(environment.python, read, ()),
    )
    try:
        async with TrainerClient(process.socket) as link:
            model = LocalModelProcess(context, spec, process, link, plan)
            await model.load()
            keeper = asyncio.create_task(model.keep())
            try:
                yield model
            finally:
                await end_tasks(keeper)
    finally:
        await process.close()


class LocalModelProcess:
    """A `Model` whose process is restarted when it dies; `failed` is a `JobFailed` once it is given up."""

    def __init__(
        self, context: JobContext, spec: ModelSpec, process: TrainerProcess, link: TrainerClient, plan: ServingPlan
    ) -> None:
        self.spec = spec
        self.failed: asyncio.Future[JobFailed] = asyncio.get_running_loop().create_future()
        self._context = context
        self._process = process
        self._link = link
        self._plan = plan
        self._model: Model = ServedModel(link, spec)
        self._up = asyncio.Event()

    @property
    def ready(self) -> bool:
        return self._up.is_set()

    async def complete(self, request: ChatRequest) -> Completion:
        asked_again = 0
        while True:
            if not self._up.is_set():
                if not self.failed.done():
                    waiting = asyncio.create_task(self._up.wait())
                    await wait_for_first(waiting, self.failed, timeout_s=PATIENCE_S)
                    waiting.cancel()
                if self.failed.done():
                    raise ModelError(self.failed.result().message, category=Category.SERVER_DIED.value)
                if not self._up.is_set():
                    message, category = "the model is being started again", Category.CONNECTION.value
                    raise ModelError(message, category=category, retry_after=5.0)
            try:
                return await self._model.complete(request)
            except ModelError as error:
                disconnected = error.category == Category.CONNECTION.value
                if not disconnected or request.told or asked_again >= ASKED_AGAIN:
                    raise
                asked_again += 1
                await asyncio.sleep(POLL_S)  # its end is noticed in this time

    async def close(self) -> None:
        """Do nothing: the process belongs to `open_local_model`."""

    async def load(self) -> None:
        await self._process.start(self._plan)
        facts = (await _loaded(self._link, self._process)).model
        if facts is not None:
            self._context.log.write(STEP, f"serving {self.spec.name}: {facts.dtype} on {facts.device}")
        self._up.set()

    async def keep(self) -> None:
        deaths = 0
        try:
            while True:
                since = time.monotonic()
                await self._process.wait_died()
                self._up.clear()
                deaths = 1 if time.monotonic() - since > STEADY_S else deaths + 1
                exit_description, tail = self._process.exit_description, "\n".join(self._process.tail)
                await self._process.stop()
                if deaths >= DEATHS_IN_A_ROW:
                    fix = "it may run out of memory: choose a smaller model, or a machine with more"
                    message = f"the process of {self.spec.name} ended {deaths} times in a row, the last time with"
                    message += f" {exit_description}"
                    raise setup_failure(message, fix=fix, category=Category.SERVER_DIED, tail=tail)
                delay = backoff_delay(deaths, base_s=RESTART_BASE_S, max_s=RESTART_MAX_S)
                message = f"the process of the model ended with {exit_description}: starting it again in {delay:.1f} s"
                self._context.log.write(STEP, message, "warning")
                await asyncio.sleep(delay)
                await self.load()
        except JobFailed as problem:
            self.failed.set_result(problem)
        except Exception as problem:  # noqa: BLE001 - border of a task nobody awaits: the job must hear of it
            message = f"the process of the model cannot be kept: {type(problem).__name__}: {problem}"
            self.failed.set_result(setup_failure(message, category=Category.UNKNOWN))


async def _loaded(link: TrainerClient, process: TrainerProcess) -> TrainerHealth:
    died, waiting = asyncio.create_task(process.wait_died()), asyncio.create_task(_ready(link))
    try:
        await asyncio.wait({died, waiting}, return_when=asyncio.FIRST_COMPLETED, timeout=LOAD_S)
        if waiting.done():
            return waiting.result()
        if died.done():
            fix = "it may have run out of memory: choose a smaller model" if process.was_killed else None
            message = f"the model could not be loaded: its process ended with {process.exit_description}"
            raise setup_failure(message, fix=fix, category=Category.SERVER_DIED, tail="\n".join(process.tail))
        raise setup_failure(f"the model was not loaded within {LOAD_S:.0f} s", category=Category.TIMEOUT)
    finally:
        await end_tasks(died, waiting)


async def _ready(link: TrainerClient) -> TrainerHealth:
    health = await link.wait_up()
    while health.state == "loading":
        await asyncio.sleep(POLL_S)
        health = await link.wait_up()  # one that has ended is noticed by the caller
    if health.state == "failed":
        async for numbered in link.events():
            if (event := numbered.event).type == "failed":
                raise setup_failure(event.message, fix=event.fix, category=Category.UNKNOWN, tail=event.traceback)
        raise setup_failure("the model could not be loaded", category=Category.UNKNOWN)
    return health


async def base_model_folder(context: JobContext, python: Path, named: str = "") -> Path:
    named = named or context.spec.model_path or context.spec.named_model
    folder = Path(named)
    if not folder.is_absolute():
        if named.startswith("osmosis/"):
            message = f"{named} is a model hosted by this platform, and the job was not told where it is stored"
            raise setup_failure(message, fix="submit the run again", category=Category.MODEL_NOT_FOUND)
        folder = context.cache_dir / "hub" / named.replace("/", "--")
        async with locked_async(folder.parent / ".locks" / folder.name):
            if not (folder / MARKER).exists():
                await _fetch(context, python, named, folder)
    try:
        facts = await asyncio.to_thread(check_model, folder)
    except ValidationError as problem:
        message = f"the base model {named} cannot be used: {problem.message}"
        raise setup_failure(message, fix=problem.hint, category=Category.MODEL_NOT_FOUND) from problem
    size = f"{facts.architecture}, {facts.parameters / 1e6:.1f} M parameters"
    context.log.write(FETCH_STEP, f"base model {context.spec.named_model}: {size}")
    return folder


async def tokenizer_folder(context: JobContext, config: TrainingConfig, python: Path) -> Path:
    named = context.spec.tokenizer_path or config.advanced.tokenizer or config.experiment.model_path
    folder = Path(named)
    if not folder.is_absolute():
        folder = context.cache_dir / "hub" / f"{named.replace('/', '--')}--tokenizer"
        async with locked_async(folder.parent / ".locks" / folder.name):
            if not (folder / MARKER).exists():
                await _fetch(context, python, named, folder, TEXTS)
    try:
        await asyncio.to_thread(check_tokenizer, folder)
    except ValidationError as problem:
        message = f"the tokenizer {named} cannot be used: {problem.message}"
        fix = "name another one in [advanced].tokenizer: a base model of the platform, a hub name or a folder"
        raise setup_failure(message, fix=fix, category=Category.MODEL_NOT_FOUND) from problem
    context.log.write(FETCH_STEP, f"tokenizer: {named}")
    return folder


async def _fetch(context: JobContext, python: Path, named: str, folder: Path, patterns: Sequence[str] = ALL) -> None:
    context.log.write(FETCH_STEP, f"fetching {named} from the hub, once for this machine")
    environ = machine_environ(context.environ)
    if token := context.secrets.get("HF_TOKEN"):
        environ["HF_TOKEN"] = token  # of a model that asks for a licence
    folder.mkdir(parents=True, exist_ok=True)
    done = await run_command(
        (str(python), "-I", "-c", FETCH, named, str(folder), *patterns),
        cwd=folder,
        environ={**environ, "HF_HUB_DISABLE_TELEMETRY": "1"},
        timeout_s=FETCH_S,
        log=context.log.stream(FETCH_STEP, "debug"),
        started=context.leftovers.add,
    )
    if done.ok:
        (folder / MARKER).touch()
        return
    tail = "\n".join(done.output.splitlines()[-TAIL_LINES:])
    if is_network_failure(done.output) or "ConnectionError" in done.output or "ConnectError" in done.output:
        message = f"the base model {named} cannot be fetched: the hub cannot be reached from this machine"
        fix = "osmosis model upload FOLDER from a machine that has it, and name that model in model_path"
        raise setup_failure(message, fix=fix, category=Category.CONNECTION, tail=tail)
    fix = "check the name, list HF_TOKEN in [secrets] for a model with a licence, or: osmosis model upload FOLDER"
    message = f"the base model {named} cannot be fetched: {explain_output(done.output)}"
    raise setup_failure(message, fix=fix, category=Category.MODEL_NOT_FOUND, tail=tail)


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
        raise _unusable(plan.model, Category.TIMEOUT, message, "check the endpoint, then retry the run") from None
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
