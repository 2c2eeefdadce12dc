import re
from difflib import get_close_matches
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, Field

from osmosis.records.base import Table, broken_rule

CURVES, TRACES = ("mlflow", "tensorboard", "trackio", "wandb"), ("otlp", "langfuse", "weave")
"""Tools that take figures of evaluations and of training runs; tools that take a trace of each rollout."""
TOOLS = (*CURVES, *TRACES)
VARIABLES = {
    "mlflow": "MLFLOW_TRACKING_USERNAME MLFLOW_TRACKING_PASSWORD MLFLOW_TRACKING_TOKEN",
    "wandb": "WANDB_API_KEY WANDB_BASE_URL WANDB_ENTITY WANDB_MODE",
    "otlp": "OTEL_EXPORTER_OTLP_ENDPOINT OTEL_EXPORTER_OTLP_HEADERS OTEL_EXPORTER_OTLP_PROTOCOL",
    "langfuse": "LANGFUSE_PUBLIC_KEY LANGFUSE_SECRET_KEY LANGFUSE_BASE_URL",
    "weave": "WANDB_API_KEY WF_TRACE_SERVER_URL",
}
"""The variables of `[env]` and `[secrets]` that a job of the platform gives to the exporter of a tool. Nothing else: it
runs outside of the sandbox, where another variable could make it load foreign code."""


class ExportTarget(NamedTuple):
    """A tool and where it is: an address, for `tensorboard` a folder; empty: the tool's own default."""

    tool: str
    address: str
    project: str
    content: bool

    @property
    def flags(self) -> str:
        """Return the values of `--format` and `--url` that send to it."""
        return f"{self.tool} --url {self.address}" if self.address else self.tool


def _check_target(text: str) -> str:
    tool = text.partition(":")[0]
    if tool not in TOOLS:
        near = next(iter(get_close_matches(tool, TOOLS, 1)), None)
        problem = f"{text} names no tool to export to"
        raise broken_rule(problem, f"did you mean {near}?" if near else f"one of {', '.join(TOOLS)}", near=near)
    form = {"tensorboard": "(:.+)?", "trackio": "", "weave": r":[^/\s]+/[^/\s]+"}.get(tool, r"(:https?://\S+)?")
    if not re.fullmatch(form, text.removeprefix(tool)):
        example = "" if tool == "trackio" else ":ENTITY/PROJECT" if tool == "weave" else ":https://HOST"
        raise broken_rule(f"{text} is not {tool}{example}", f"{tool}{example}")
    return text


class Export(Table):
    """`[export]`: [tools](bridges.md#out-live) that get the run while it goes on. Keys are secrets, by name."""

    targets: list[Annotated[str, AfterValidator(_check_target)]] = Field(
        min_length=1, examples=[["mlflow:http://127.0.0.1:5000"]]
    )
    """`NAME` or `NAME:ADDRESS` of `mlflow`, `tensorboard`, `trackio`, `wandb`; of evaluations also `otlp`, `langfuse`,
    `weave`."""
    project: str = Field(default="osmosis", min_length=1, pattern=r"^[\w .-]+$")
    """Project of the tool; of MLflow the experiment."""
    content: bool = False
    """Send what was asked and answered, too: prompts, messages and expected answers."""

    def list_targets(self) -> list[ExportTarget]:
        return [ExportTarget(*text.partition(":")[::2], self.project, self.content) for text in self.targets]
