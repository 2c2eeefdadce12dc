"""The subject of a run: a rollout with its dataset, the model, the code; in training several of them."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import Field, StringConstraints, field_validator
from pydantic_core import InitErrorDetails

from osmosis.records.base import Table, broken_at
from osmosis.records.config.advanced import RolloutFile

COMMIT = re.compile(r"^[0-9a-fA-F]{7,40}\Z")
Name = Annotated[str, StringConstraints(min_length=1, strip_whitespace=False)]


class Environment(Table):
    rollout: Name = Field(examples=["my-rollout"])
    """Rollout directory under `rollouts/`."""
    entrypoint: RolloutFile | None = Field(default=None, examples=["main.py"])
    """Python entrypoint, relative to the rollout directory. Either this or `command` is given."""
    command: Annotated[list[Name], Field(min_length=1)] | Name | None = Field(
        default=None, examples=[["claude", "-p", "$PROMPT"]]
    )
    """A program as the agent, as it is: its words, a line for a shell, or a name of [agents](agents.md); `acp:PROGRAM`
    speaks the Agent Client Protocol. Either this or `entrypoint` is given."""
    grader: RolloutFile | None = Field(default=None, examples=["main.py"])
    """With `command`: Python file with the `Grader`, relative to the rollout directory. Default: `main.py`."""
    dataset: Name = Field(examples=["my-dataset"])
    """Name of a dataset on the platform, as `osmosis dataset list` shows it."""

    @field_validator("rollout")
    @classmethod
    def _one_segment(cls, value: str) -> str:
        if value in (".", "..") or "/" in value or "\\" in value:
            raise ValueError("must be one directory name under rollouts/")
        return value

    @classmethod
    def across(cls, written: Mapping[str, object]) -> Iterator[InitErrorDetails]:
        both = [name for name in ("entrypoint", "command") if written.get(name) is not None]
        if not both:
            problem, fix = "entrypoint or command is missing", 'entrypoint = "main.py", or command = ["claude", ...]'
            yield broken_at(problem, fix, "entrypoint", code="missing-key")
        elif len(both) == 2:
            fix = "keep command to run a program, or entrypoint to run your own code"
            yield broken_at("entrypoint and command cannot be used together", fix, "command")
        if written.get("grader") and written.get("command") is None:
            fix = "remove it: an entrypoint brings its grader"
            yield broken_at("grader has no effect without command", fix, "grader")

    @property
    def file(self) -> str:
        return self.entrypoint or self.grader or "main.py"

    @property
    def agent(self) -> str:
        if self.command is None:
            return f"rollouts/{self.rollout}/{self.file}"
        words = [self.command] if isinstance(self.command, str) else map(_quote, self.command)
        return f"command:{' '.join(words)}"


class Experiment(Environment):
    """`[experiment]`: what to run."""

    model_path: Name = Field(examples=["offline/calculator"])
    """Eval: a LiteLLM model name, or `offline/calculator`. Training: the base model, as in [training](training.md)."""
    branch: str | None = Field(default=None, examples=["main"])
    """Run the latest synced commit of this branch. Cannot be used with `commit_sha`."""
    commit_sha: str | None = Field(default=None, examples=["<7 to 40 hexadecimal digits>"])
    """Pin the code to a commit (7 to 40 hex digits). Default: the latest synced commit of the default branch."""

    @field_validator("branch")
    @classmethod
    def _branch(cls, value: str | None) -> str | None:
        if value is not None and (not value or re.search(r"\s", value)):
            raise ValueError("must be a branch name without whitespace")
        return value

    @field_validator("commit_sha")
    @classmethod
    def _sha(cls, value: str | None) -> str | None:
        if value is not None and not COMMIT.match(value):
            raise ValueError("must be 7 to 40 hexadecimal digits")
        return value

    @classmethod
    def across(cls, written: Mapping[str, object]) -> Iterator[InitErrorDetails]:
        if written.get("branch") and written.get("commit_sha"):
            fix = "keep commit_sha to pin the code, or branch to follow it"
            yield broken_at("branch and commit_sha cannot be used together", fix, "commit_sha")
        yield from super().across(written)


class Mix(Environment):
    """`[[mix]]`: one more environment of a training run; `[experiment]` is the first."""

    name: str | None = Field(default=None, pattern=r"^[\w.-]+$", examples=["easy"])
    """Name in curves, and before its row keys: letters, digits, `_`, `.` and `-`. Default: the rollout."""
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Share of the rows that are trained on, and of the validation reward: this, of the sum of all weights."""

    @property
    def label(self) -> str:
        return self.name or self.rollout


class TrainingExperiment(Experiment, Mix):
    """`[experiment]` of a training config."""


def _quote(word: str) -> str:
    if re.fullmatch(r"[\w./:=@%+,-]+", word):
        return word
    return '"' + re.sub(r'[\\"`]|\$(?![A-Za-z_{])', r"\\\g<0>", word) + '"'
