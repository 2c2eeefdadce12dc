"""Run a workflow inside of a sandbox: `python -m osmosis.sdk.harbor.entrypoint REQUEST RESULT ARTIFACTS`."""

import asyncio
import importlib
import json
import operator
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from osmosis._version import __version__
from osmosis.base.files import write_json
from osmosis.base.jsonable import JsonObject
from osmosis.records.protocol.messages import RolloutInit
from osmosis.records.trajectory import build_trajectory
from osmosis.sdk.backend import ExecutionResult, LocalBackend, WorkflowTask
from osmosis.sdk.harbor.handoff import ID_VARIABLE, KEY_VARIABLE, PROTOCOL, URL_VARIABLE
from osmosis.sdk.sandbox import Opening, opening_in_place
from osmosis.sdk.types import AgentWorkflowConfig, json_safe

FAILED = 3
RESULT_FILE = "osmosis-result.json"
TRAJECTORY_FILE = "trajectory.json"


class SandboxBackend(LocalBackend):
    def __init__(
        self, workflow: str, config: AgentWorkflowConfig | None, artifacts: Path, environ: Mapping[str, str]
    ) -> None:
        super().__init__(workflow, config, environ=environ)
        self._artifacts_dir = artifacts

    def _sandbox_opening(self, task: WorkflowTask) -> Opening:
        return opening_in_place({name: value for name, value in self._environ.items() if name != KEY_VARIABLE})

    def _artifacts(self, task: WorkflowTask) -> Path | None:
        return self._artifacts_dir


async def run(request: Mapping[str, Any], environ: Mapping[str, str], artifacts: Path) -> ExecutionResult:
    backend = SandboxBackend(str(request["workflow"]), load_config(request.get("config")), artifacts, environ)
    init = RolloutInit(
        initial_messages=request["messages"],
        metadata=request.get("metadata"),
        rollout_id=environ.get(ID_VARIABLE),
        chat_completions_url=environ.get(URL_VARIABLE, ""),
        llm_api_key=environ.get(KEY_VARIABLE) or None,
        grade=False,
        agent_timeout_sec=request.get("agent_timeout_sec"),
        extra_fields=request.get("extra_fields"),
    )
    return await backend.execute(init)


def load_config(described: Mapping[str, object] | None) -> AgentWorkflowConfig | None:
    if described is None:
        return None
    module, _, name = str(described.get("object") or described["class"]).partition(":")
    value = operator.attrgetter(name)(importlib.import_module(module))
    config = value if "object" in described else value.model_validate(described["values"])
    if not isinstance(config, AgentWorkflowConfig):
        raise TypeError(f"{module}:{name} is not an AgentWorkflowConfig")
    return config


def check(protocol: str, requirements: Path) -> bool:
    """Return whether this Python speaks `protocol` and has all requirements; a wheel among them is the SDK itself."""
    from importlib.metadata import PackageNotFoundError, version

    from packaging.requirements import Requirement

    if protocol != PROTOCOL:
        return False
    for line in requirements.read_text(encoding="utf-8").split("\n"):
        if not line.strip() or line.startswith("./"):
            continue
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        try:
            if not requirement.specifier.contains(version(requirement.name), prereleases=True):
                return False
        except PackageNotFoundError:
            return False
    return True


def main(arguments: list[str]) -> int:
    if arguments[0] == "--check":
        return 0 if check(arguments[1], Path(arguments[2])) else 1
    request_file, result_file, artifacts = (Path(argument) for argument in arguments)
    request = json.loads(request_file.read_text(encoding="utf-8"))
    result = asyncio.run(run(request, os.environ, artifacts))
    result_file.parent.mkdir(parents=True, exist_ok=True)
    sample = result.sample
    body: JsonObject = {
        "protocol": PROTOCOL,
        "status": result.status,
        "err_category": result.err_category,
        "failure": result.failure.to_dict() if result.failure else None,
        "info": json_safe(result.info, "info"),
        "sample": None,
    }
    if sample is not None:
        names = ("messages", "trajectory_messages", "metrics", "extra_fields", "remove_sample")
        body["sample"] = {name: json_safe(getattr(sample, name), name) for name in names}
    write_json(result_file, body)
    conversation = result.sample.trajectory_messages if result.sample is not None else None
    if conversation:
        prompt_length = len(request["messages"])
        named = os.environ.get(ID_VARIABLE, "rollout")
        document = build_trajectory(
            json_safe(conversation, "messages"), named, version=__version__, opening=prompt_length
        )
        write_json(result_file.with_name(TRAJECTORY_FILE), document.to_dict())
    return 0 if result.status == "success" else FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
