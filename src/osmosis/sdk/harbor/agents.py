import importlib
import inspect
import json
import tempfile
from pathlib import Path
from typing import Any

from harbor.agents.base import BaseAgent
from harbor.agents.factory import AgentFactory
from harbor.agents.installed.base import BaseInstalledAgent, NonZeroAgentExitCodeError
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext
from harbor.models.agent.name import AgentName
from harbor.models.trial.config import AgentConfig

from osmosis._version import __version__
from osmosis.sdk.harbor.entrypoint import FAILED, RESULT_FILE
from osmosis.sdk.harbor.handoff import CODE, ROOT, SDK, Delivery, Ticket, find_ticket
from osmosis.sdk.harbor.settings import DEFAULT_SETUP_S
from osmosis.sdk.harbor.trials import under_task

LOGS = "/logs/agent"
ARTIFACTS = "/logs/artifacts"
OUTPUT_TAIL = 2000


class WorkflowAgent(BaseAgent):
    def __init__(self, *args: Any, ticket: str, extra_env: dict[str, str] | None = None, **kwargs: Any) -> None:
        self._ticket: Ticket = find_ticket(ticket)
        variables = {**(extra_env or {}), **self._ticket.endpoint.environment(native=False)}
        super().__init__(*args, extra_env=variables, **kwargs)
        self._steps = 0

    @staticmethod
    def name() -> str:
        return "osmosis-workflow"

    def version(self) -> str:
        return __version__

    async def setup(self, environment: BaseEnvironment) -> None:
        delivery = self._ticket.delivery
        assert delivery is not None
        if ((await environment.exec(f"cat {SDK}/id", user="root")).stdout or "").strip() != delivery.sdk_id:
            await self._command(environment, f"rm -rf {SDK} && mkdir -p {SDK}", "create the folder for the SDK")
            await environment.upload_dir(delivery.sdk, SDK)
        await self._command(environment, f"sh {SDK}/install.sh", "install the SDK")
        if delivery.code is not None:
            await self._command(environment, f"rm -rf {CODE} && mkdir -p {CODE}", "create the folder for the code")
            await environment.upload_file(delivery.code, f"{ROOT}/code.tar.gz")
            await self._command(environment, f"tar -xzf {ROOT}/code.tar.gz -C {CODE}", "unpack the code")
        await self._command(environment, f"chmod -R a+rX {ROOT} && mkdir -p {ARTIFACTS}", "make the folders readable")

    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        """Raise `NonZeroAgentExitCodeError` when the workflow failed; its result file has the failure."""
        delivery = self._ticket.delivery
        assert delivery is not None
        self._steps += 1
        request = {**self._ticket.request, "messages": self._messages(instruction)}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "request.json"
            path.write_text(json.dumps(request, ensure_ascii=False), encoding="utf-8")
            await environment.upload_file(path, f"{ROOT}/request.json")
        result_file = f"{LOGS}/{RESULT_FILE}"
        await self._command(environment, f"chmod a+r {ROOT}/request.json", "make the request readable")
        done = await environment.exec(
            f'{_python_path(delivery)} exec "$(cat {ROOT}/python)" -m osmosis.sdk.harbor.entrypoint '
            f"{ROOT}/request.json {result_file} {ARTIFACTS}"
        )
        if done.return_code == FAILED:
            raise NonZeroAgentExitCodeError("the workflow failed")
        if done.return_code != 0:
            output = f"{done.stdout or ''}\n{done.stderr or ''}".strip()[-OUTPUT_TAIL:]
            raise NonZeroAgentExitCodeError(f"the workflow's process ended with code {done.return_code}: {output}")

    def _messages(self, instruction: str) -> list[dict[str, Any]]:
        ticket = self._ticket
        if self._steps == 1 and ticket.instruction and instruction.strip() == ticket.instruction.strip():
            return ticket.messages
        return under_task(ticket.messages, instruction)

    async def _command(self, environment: BaseEnvironment, command: str, purpose: str) -> None:
        done = await environment.exec(command, user="root")
        if done.return_code != 0:
            output = f"{done.stdout or ''}\n{done.stderr or ''}".strip()[-OUTPUT_TAIL:]
            raise RuntimeError(f"the sandbox cannot {purpose} (exit code {done.return_code}): {output}")


class NativeAgent:
    """A placeholder for one of Harbor's agents: making it makes that agent, with the endpoint."""

    DEFAULT_SETUP_TIMEOUT_SEC = DEFAULT_SETUP_S

    def __new__(cls, logs_dir: Path, model_name: str | None = None, *, ticket: str, **kwargs: Any) -> BaseAgent:
        opened = find_ticket(ticket)
        extra_env = {**(kwargs.pop("extra_env", None) or {}), **opened.endpoint.environment(native=True)}
        config = AgentConfig(**{**opened.native, "env": extra_env})
        config.kwargs = {**config.kwargs, **_on_this_machine(config, opened)}
        return AgentFactory.create_agent_from_config(config, logs_dir=logs_dir, **kwargs)


def setup_timeout_of(native: dict[str, Any]) -> float:
    return float(getattr(_class_of(AgentConfig(**native)), "DEFAULT_SETUP_TIMEOUT_SEC", DEFAULT_SETUP_S))


def _class_of(config: AgentConfig) -> type | None:
    """Return the agent's class; None for an agent of the ACP registry, which has no class of its own."""
    if config.import_path is not None:
        module, _, name = config.import_path.partition(":")
        imported: type = getattr(importlib.import_module(module), name)
        return imported
    if config.name not in AgentName.values():
        return None
    agent_class: type = AgentFactory.get_agent_class(AgentName(config.name))
    return agent_class


def _on_this_machine(config: AgentConfig, ticket: Ticket) -> dict[str, Any]:
    agent_class = _class_of(config)
    if agent_class is None or issubclass(agent_class, BaseInstalledAgent):
        return {}
    parameters = inspect.signature(agent_class).parameters
    if "api_base" not in parameters:
        return {}
    options: dict[str, Any] = {"api_base": ticket.endpoint.url}
    if "llm_call_kwargs" in parameters:
        options["llm_call_kwargs"] = {"api_key": ticket.endpoint.key, **(config.kwargs.get("llm_call_kwargs") or {})}
        config.kwargs.pop("llm_call_kwargs", None)
    return options


def _python_path(delivery: Delivery) -> str:
    if not delivery.python_paths:
        return ""
    paths = ":".join(f"{CODE}/{path}".rstrip("/") for path in delivery.python_paths)
    return f'PYTHONPATH="{paths}${{PYTHONPATH:+:$PYTHONPATH}}"'
