"""The rollouts of one step on disk, with the tokens that the model sampled, durable together: a line of
`rollouts.jsonl` has `tokens` beside the rollout's own keys, for each unbroken sequence. A complete step is packed with
gzip."""

import gzip
import re
import shutil
import threading
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, cast

import msgspec
import orjson

from osmosis.base.files import replacing
from osmosis.base.redact import Redactor
from osmosis.engine.journal import Journal
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.rollout import Category, Phase, Rollout, RolloutStatus, Score
from osmosis.training.protocol.messages import Kind, Sequence
from osmosis.training.token_sequences import Conversation

GZIP_LEVEL = 4
"""Token ids as text shrink to a fifth; higher levels take twice the time for a little less."""
_NAME = re.compile(r"^(train|validation)-(\d{6,})\Z")


class StoredPart(msgspec.Struct, gc=False):
    prompt_token_ids: list[int]
    completion_token_ids: list[int]
    mask: list[int]
    logprobs: list[float]
    truncated: bool = False
    turns: int = 1


class StoredFailure(msgspec.Struct, gc=False):
    phase: Phase
    category: Category
    message: str = ""


class StoredScore(msgspec.Struct, gc=False):
    value: float | None = None
    failure: StoredFailure | None = None
    parts: dict[str, float] | None = None


class StoredStepRollout(msgspec.Struct, gc=False):
    """What a step needs of a stored line: the tokens are most of it, and msgspec reads them several times faster."""

    row_index: int
    attempt: int
    status: RolloutStatus
    scores: dict[str, StoredScore] = {}
    failure: StoredFailure | None = None
    tokens: list[StoredPart] = []
    metrics: dict[str, float] = {}
    malformed_calls: int = 0
    repaired_calls: int = 0
    sampled_tokens: int | None = None  # of all answers; None: stored before they were counted
    reward: float | None = None  # None: unscorable

    @property
    def reason(self) -> str | None:
        failure = self.failure or next((score.failure for score in self.scores.values() if score.failure), None)
        if failure is not None:
            return f"{failure.category.value}: {failure.message}"
        if self.status is RolloutStatus.SUCCESS and not self.scores:
            return "invalid_score: neither grader nor agent gave it a reward"
        return None

    def sequences(self) -> list[Sequence]:
        return [
            Sequence(
                row=self.row_index,
                attempt=self.attempt,
                part=number,
                token_ids=array("i", part.prompt_token_ids + part.completion_token_ids),
                prompt_length=len(part.prompt_token_ids),
                mask=bytes(part.mask),
                logprobs=array("f", part.logprobs),
                reward=self.reward,
                truncated=part.truncated,
            )
            for number, part in enumerate(self.tokens)
        ]


def find_reward(rollout: Rollout | StoredStepRollout, failure_rewards: Mapping[Category, float]) -> float | None:
    """Return the first score of a rollout that ended well, or what the config gives its failure."""
    if rollout.status is RolloutStatus.SUCCESS:
        scores: Iterable[Score | StoredScore] = rollout.scores.values()
        return next((score.value for score in scores), None)
    if rollout.failure is not None and rollout.failure.phase in (Phase.AGENT, Phase.MODEL):
        return failure_rewards.get(rollout.failure.category)
    return None


_decode = msgspec.json.Decoder(StoredStepRollout).decode


def _read_stored(line: bytes) -> StoredStepRollout:
    try:
        return _decode(line)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


class StepJournal(Journal):
    """The journal of one step. `keep` a rollout's conversation before the engine stores the rollout."""

    def __init__(
        self,
        steps: Path,
        kind: Kind,
        step: int,
        *,
        redactor: Redactor | None = None,
        failure_rewards: Mapping[Category, float] | None = None,
    ) -> None:
        super().__init__(steps / step_folder_name(kind, step), redactor=redactor)
        self._failure_rewards = failure_rewards or {}
        self._conversations: dict[str, Conversation] = {}
        self._appending = threading.Lock()

    @property
    def packed_path(self) -> Path:
        return self.folder / "rollouts.jsonl.gz"

    @property
    def empty(self) -> bool:
        return super().empty and not self.packed_path.exists()

    def source(self) -> IO[bytes]:
        return super().source() if self.rollouts_path.exists() else cast(IO[bytes], gzip.open(self.packed_path, "rb"))

    def open(self, plan: EvalPlan, *, facts: Mapping[str, object] | None = None) -> None:
        if self.packed_path.exists():
            if not self.rollouts_path.exists():  # both are there when a kill came between the two
                with self.source() as packed, replacing(self.rollouts_path, durable=True) as plain:
                    shutil.copyfileobj(packed, plain)
            self.packed_path.unlink()
        super().open(plan, facts=facts)

    def pack(self) -> None:
        if self.rollouts_path.exists() and not self.is_open:
            with (
                replacing(self.packed_path, durable=True) as out,
                gzip.open(out, "wb", GZIP_LEVEL) as packed,
                self.source() as plain,
            ):
                shutil.copyfileobj(plain, packed)
            self.rollouts_path.unlink()

    def keep(self, rollout_id: str, conversation: Conversation) -> None:
        self._conversations[rollout_id] = conversation

    def append_all(self, rollouts: list[Rollout]) -> list[Rollout]:
        with self._appending:  # groups that begin later have a thread of their own
            return super().append_all(rollouts)

    def stored_line(self, rollout: Rollout, line: bytes) -> bytes:
        conversation = self._conversations.pop(rollout.rollout_id, None) or Conversation()
        tokens = [
            {
                "prompt_token_ids": part.token_ids[: part.prompt_length],
                "completion_token_ids": part.token_ids[part.prompt_length :],
                "mask": part.mask,
                "logprobs": part.logprobs,
                "truncated": part.truncated,
                "turns": part.turns,
            }
            for part in conversation.parts
        ]
        extra: dict[str, object] = {"tokens": tokens, "sampled_tokens": conversation.sampled_tokens}
        for name in ("malformed_calls", "repaired_calls"):
            if count := getattr(conversation, name):
                extra[name] = count
        return line.rstrip()[:-1] + b"," + orjson.dumps(extra)[1:] + b"\n"

    def stored(self) -> list[StoredStepRollout]:
        stored: dict[tuple[int, int], StoredStepRollout] = {}
        for rollout, _ in self._read(_read_stored):
            rollout.reward = find_reward(rollout, self._failure_rewards)
            stored.setdefault((rollout.row_index, rollout.attempt), rollout)
        return [stored[key] for key in sorted(stored)]

    def plain_lines(self) -> Iterator[tuple[Rollout, bytes]]:
        for rollout in self.rollouts():
            yield rollout, self.line(rollout)


def step_folder_name(kind: Kind, step: int) -> str:
    return f"{kind}-{step:06d}"


def list_stored_steps(steps: Path) -> list[tuple[Kind, int]]:
    names = (_NAME.match(path.name) for path in sorted(steps.iterdir()) if path.is_dir()) if steps.is_dir() else ()
    return [("train" if name[1] == "train" else "validation", int(name[2])) for name in names if name]
