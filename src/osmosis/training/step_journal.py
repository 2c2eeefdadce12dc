"""The rollouts of one step on disk, with the tokens that the model sampled: what a step can be replayed from.

It is the engine's journal, one folder for the training rollouts of a step and one for each validation; a line of
`rollouts.jsonl` has the key `tokens` beside the rollout's own: for each unbroken sequence `prompt_token_ids`,
`completion_token_ids` and `logprobs`, named as in trajectories, with the `mask` of what follows the prompt. Rollout and
tokens are durable together or not at all. A step that is complete is packed with gzip, and unpacked when it is written
again. Nothing here decides what is worth running again.
"""

from __future__ import annotations

import gzip
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Literal, cast

import orjson
from pydantic import Field

from osmosis.base.files import replacing
from osmosis.base.redact import Redactor
from osmosis.engine.journal import Journal
from osmosis.records.base import Record
from osmosis.records.plan import EvalPlan
from osmosis.records.rollout import Rollout, RolloutStatus
from osmosis.training.link import Sequence

from .stitching import Conversation

GZIP_LEVEL = 4
"""Token ids as text shrink to a fifth; higher levels take twice the time for a little less."""
Kind = Literal["train", "validation"]
_NAME = re.compile(r"^(train|validation)-(\d{6,})$")


class StoredPart(Record):
    """One sequence of a rollout's tokens."""

    prompt_token_ids: list[int]
    completion_token_ids: list[int]
    """Everything that follows the prompt, the environment's tokens included."""
    mask: list[int]
    """1 where the model spoke."""
    logprobs: list[float]
    truncated: bool = False
    turns: int = 1


class StoredStepRollout(Record):
    """A line of a step's journal, without the rollout's conversation."""

    row_index: int
    attempt: int
    status: RolloutStatus
    reward: float | None = None
    """None: unscorable."""
    tokens: list[StoredPart] = Field(default_factory=list)
    malformed_calls: int = 0
    failure: str | None = None
    """Why it is unscorable: `category: message`."""

    def sequences(self) -> list[Sequence]:
        """As the trainer takes them."""
        return [
            Sequence(
                row=self.row_index,
                attempt=self.attempt,
                part=number,
                token_ids=part.prompt_token_ids + part.completion_token_ids,
                prompt_length=len(part.prompt_token_ids),
                mask=part.mask,
                logprobs=part.logprobs,
                reward=self.reward,
                truncated=part.truncated,
            )
            for number, part in enumerate(self.tokens)
        ]


class StepJournal(Journal):
    """The journal of one step. `keep` a rollout's conversation before the engine stores the rollout."""

    def __init__(self, steps: Path, kind: Kind, step: int, *, redactor: Redactor | None = None) -> None:
        super().__init__(steps / name_of(kind, step), redactor=redactor)
        self._conversations: dict[str, Conversation] = {}

    @property
    def packed_path(self) -> Path:
        return self.folder / "rollouts.jsonl.gz"

    @property
    def empty(self) -> bool:
        return super().empty and not self.packed_path.exists()

    def source(self) -> IO[bytes]:
        """Packed or not."""
        return super().source() if self.rollouts_path.exists() else cast(IO[bytes], gzip.open(self.packed_path, "rb"))

    def open(self, plan: EvalPlan, *, facts: Mapping[str, object] | None = None) -> None:
        """As a journal is; what was packed is unpacked."""
        if self.packed_path.exists():
            if not self.rollouts_path.exists():  # both are there when a kill came between the two
                with self.source() as packed, replacing(self.rollouts_path, durable=True) as plain:
                    shutil.copyfileobj(packed, plain)
            self.packed_path.unlink()
        super().open(plan, facts=facts)

    def pack(self) -> None:
        """Once nothing more is written; what is read from it stays the same."""
        if self.rollouts_path.exists() and not self.is_open:
            with (
                replacing(self.packed_path, durable=True) as out,
                gzip.open(out, "wb", GZIP_LEVEL) as packed,
                self.source() as plain,
            ):
                shutil.copyfileobj(plain, packed)
            self.rollouts_path.unlink()

    def keep(self, rollout_id: str, conversation: Conversation) -> None:
        """What this rollout has said."""
        self._conversations[rollout_id] = conversation

    def stored_line(self, rollout: Rollout, line: bytes) -> bytes:
        conversation = self._conversations.pop(rollout.rollout_id, None) or Conversation()
        kept: dict[str, object] = {"tokens": [part.model_dump() for part in _parts(conversation)]}
        if conversation.malformed_calls:
            kept["malformed_calls"] = conversation.malformed_calls
        return line.rstrip()[:-1] + b"," + orjson.dumps(kept)[1:] + b"\n"

    def stored(self) -> list[StoredStepRollout]:
        """Everything stored so far, by row and attempt: the same however often and in whichever order it was run."""
        found = []
        for line in self.lines():
            rollout = Rollout.model_validate(line)
            kept = {key: line[key] for key in ("tokens", "malformed_calls") if key in line}
            one = StoredStepRollout(
                row_index=rollout.row_index,
                attempt=rollout.attempt,
                status=rollout.status,
                reward=reward_of(rollout),
                failure=failure_of(rollout),
                **kept,
            )
            found.append(one)
        return sorted(found, key=lambda one: (one.row_index, one.attempt))

    def plain_lines(self) -> Iterator[tuple[Rollout, bytes]]:
        """Every stored rollout, and its line without tokens."""
        for rollout in self.rollouts():
            yield rollout, self.line(rollout)


def name_of(kind: Kind, step: int) -> str:
    """The folder of a step."""
    return f"{kind}-{step:06d}"


def stored_steps(steps: Path) -> list[tuple[Kind, int]]:
    """Which journals there are."""
    names = (_NAME.match(path.name) for path in sorted(steps.iterdir()) if path.is_dir()) if steps.is_dir() else ()
    return [("train" if name[1] == "train" else "validation", int(name[2])) for name in names if name]


def reward_of(rollout: Rollout) -> float | None:
    """The first score of a rollout that ended well. None: unscorable, which is no zero."""
    if rollout.status is not RolloutStatus.SUCCESS:
        return None
    first = next(iter(rollout.scores.values()), None)
    return first.value if first else None


def failure_of(rollout: Rollout) -> str | None:
    """Why a rollout has no reward; None when it has one, or was left out by its own wish."""
    failure = rollout.failure or next((score.failure for score in rollout.scores.values() if score.failure), None)
    if failure is not None:
        return f"{failure.category.value}: {failure.message}"
    if rollout.status is RolloutStatus.SUCCESS and not rollout.scores:
        return "invalid_score: neither grader nor agent gave it a reward"
    return None


def _parts(conversation: Conversation) -> list[StoredPart]:
    return [
        StoredPart(
            prompt_token_ids=part.token_ids[: part.prompt_length],
            completion_token_ids=part.token_ids[part.prompt_length :],
            mask=part.mask,
            logprobs=part.logprobs,
            truncated=part.truncated,
            turns=part.turns,
        )
        for part in conversation.parts
    ]
