"""The rollouts of one step on disk, with the tokens that the model sampled, durable together: a line of
`rollouts.jsonl` has `tokens` beside the rollout's own keys, for each unbroken sequence. A complete step is packed with
gzip. Its figures come from the stored rollouts, so a replayed step has the same ones."""

import gzip
import math
import re
import shutil
import threading
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import IO, cast

import msgspec
import orjson

from osmosis.base.files import replacing
from osmosis.base.redact import Redactor
from osmosis.base.stats import quantile
from osmosis.engine.journal import Journal
from osmosis.metrics.warnings import training_alarms
from osmosis.records.run.job import MetricPoint
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.rollout import Category, Phase, Rollout, RolloutStatus, Score
from osmosis.training.protocol.messages import Kind, Sequence as TokenSequence
from osmosis.training.protocol.plans import TrainerPlan
from osmosis.training.token_sequences import Conversation

GZIP_LEVEL = 4  # Token ids as text shrink to a fifth; higher levels take twice the time for a little less
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
    """The part of a stored line that a step needs: the tokens are most of it, and msgspec reads them several times
    faster."""

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

    def sequences(self) -> list[TokenSequence]:
        return [
            TokenSequence(
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


GRAM = 4
SEALED = "sealed"  # The metric of a rollout that the sealed grader gives
APART = ("rollout/raw_reward", "rollout/no_signal_ratio", "eval/validation/reward", "eval/sealed")
"""Figures that each environment of a mixture has for itself."""
_RUNS = re.compile(rb"\x01+")


def step_figures(rollouts: Sequence[StoredStepRollout], kind: Kind) -> dict[str, float]:
    if not rollouts:
        return {}
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    failed = sum(1 for rollout in rollouts if rollout.reward is None) / len(rollouts)
    if kind == "validation":
        validation = {"eval/validation/failed_ratio": failed}
        if sealed := [rollout.metrics[SEALED] for rollout in rollouts if SEALED in rollout.metrics]:
            validation["eval/sealed"] = fmean(sealed)
        return {"eval/validation/reward": fmean(rewards), **validation} if rewards else validation
    spoken = [rollout for rollout in rollouts if rollout.tokens]
    figures = {
        "rollout/failed_ratio": failed,
        "rollout/no_signal_ratio": no_signal_ratio(rollouts),
        "rollout/forks": float(sum(max(0, len(rollout.tokens) - 1) for rollout in rollouts)),
        "rollout/malformed_calls": float(sum(rollout.malformed_calls for rollout in rollouts)),
        **fidelity_figures(rollouts),
    }
    if rewards:
        figures |= {"rollout/raw_reward": fmean(rewards), "rollout/reward_std": pstdev(rewards)}
        figures |= {f"rollout/reward_p{rank}": quantile(sorted(rewards), rank / 100) for rank in (10, 50, 90)}
        parts = [(score.parts or {}) for rollout in rollouts for score in rollout.scores.values()]
        for name in dict.fromkeys(name for named in parts for name in named):
            figures[f"rollout/reward/{name}"] = fmean([named[name] for named in parts if name in named])
    if spoken:
        figures |= {
            "rollout/response_lengths": fmean([_count_sampled(rollout) for rollout in spoken]),
            "rollout/total_lengths": fmean(
                [
                    sum(len(part.prompt_token_ids) + len(part.completion_token_ids) for part in rollout.tokens)
                    for rollout in spoken
                ]
            ),
            "rollout/truncated_ratio": fmean([any(part.truncated for part in rollout.tokens) for rollout in spoken]),
            "rollout/turns": fmean([sum(part.turns for part in rollout.tokens) for rollout in spoken]),
            "rollout/repetition_ratio": fmean([_repetition(rollout) for rollout in spoken]),
        }
    return figures


def environment_figures(plan: TrainerPlan, rollouts: Sequence[StoredStepRollout], kind: Kind) -> dict[str, float]:
    figures: dict[str, float] = {}
    for at, environment in enumerate(plan.environments):
        own = step_figures([each for each in rollouts if plan.find_environment(each.row_index) == at], kind)
        figures |= {f"{key}/{environment.name}": own[key] for key in APART if key in own}
    scored = [(rollout.row_index, rollout.reward) for rollout in rollouts if rollout.reward is not None]
    if kind == "validation" and (reward := plan.mean_reward(scored)) is not None:
        figures["eval/validation/reward"] = reward
    return figures


def no_signal_ratio(rollouts: Sequence[StoredStepRollout]) -> float:
    """Return the share of the rows whose scored attempts all have the same reward, which teach nothing."""
    groups: dict[int, set[float]] = {}
    for rollout in rollouts:
        group = groups.setdefault(rollout.row_index, set())
        if rollout.reward is not None:
            group.add(rollout.reward)
    return sum(1 for group in groups.values() if len(group) < 2) / len(groups) if groups else 1.0


def count_sampled_tokens(rollouts: Sequence[StoredStepRollout]) -> int:
    return sum(_count_sampled(rollout) for rollout in rollouts)


def fidelity_figures(rollouts: Sequence[StoredStepRollout]) -> dict[str, float]:
    """Return what became of the sampled tokens; some in two sequences, or in none, are a bug, and an alarm."""
    sampled = {id(rollout): _count_sampled(rollout) for rollout in rollouts}
    apart = [sampled[id(r)] - r.sampled_tokens for r in rollouts if r.sampled_tokens is not None]
    return {
        "fidelity/sampled_tokens": float(sum(sampled.values()) - sum(apart)),
        "fidelity/unscored_tokens": float(sum(sampled[id(r)] for r in rollouts if r.reward is None)),
        "fidelity/twice": float(sum(max(0, difference) for difference in apart)),
        "fidelity/lost": float(sum(max(0, -difference) for difference in apart)),
        "fidelity/repaired": float(sum(r.repaired_calls for r in rollouts)),
    }


def _count_sampled(rollout: StoredStepRollout) -> int:
    return sum(sum(part.mask) for part in rollout.tokens)


def _repetition(rollout: StoredStepRollout) -> float:
    runs = repeated = 0
    for answer in (answer for part in rollout.tokens for answer in _answers(part)):
        count = max(0, len(answer) - GRAM + 1)
        runs += count
        repeated += count - len(set(zip(*(answer[at:] for at in range(GRAM)), strict=False)))
    return repeated / runs if runs else 0.0


def _answers(part: StoredPart) -> list[list[int]]:
    return [part.completion_token_ids[run.start() : run.end()] for run in _RUNS.finditer(bytes(part.mask))]


class MetricsFile:
    """An append-only file, which a resumed job reads; of a step that is done again the last value counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._values: dict[str, dict[int, float]] = {}
        self._told: set[str] = set()
        for line in path.read_bytes().splitlines() if path.exists() else ():
            try:
                point = orjson.loads(line)
                self._values.setdefault(point["key"], {})[point["step"]] = point["value"]
            except (orjson.JSONDecodeError, KeyError, TypeError):
                continue  # the line that was being written when the job was killed
        self._told.update(_kind(text) for text in self.alarms())

    def add(self, step: int, values: Mapping[str, float]) -> list[MetricPoint]:
        points = [MetricPoint(key=k, step=step, value=v) for k, v in values.items() if math.isfinite(v)]
        for point in points:
            self._values.setdefault(point.key, {})[step] = point.value
        at = time.time()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            lines = ({"step": step, "key": p.key, "value": p.value, "at": round(at, 3)} for p in points)
            file.write(b"".join(orjson.dumps(line) + b"\n" for line in lines))
        return points

    def find(self, key: str, step: int) -> float | None:
        return self._values.get(key, {}).get(step)

    def total(self, key: str) -> float:
        return sum(self._values.get(key, {}).values())

    def points(self) -> list[MetricPoint]:
        return [
            MetricPoint(key=key, step=step, value=value)
            for key, values in self._values.items()
            for step, value in sorted(values.items())
        ]

    def alarms(self) -> list[str]:
        return training_alarms({key: sorted(values.items()) for key, values in self._values.items()})

    def new_alarms(self) -> list[str]:
        now = {_kind(text): text for text in self.alarms()}
        new = [text for kind, text in now.items() if kind not in self._told]
        self._told = set(now)
        return new


def _kind(text: str) -> str:
    return "".join(char for char in text if not char.isdigit() and char not in ".-")
