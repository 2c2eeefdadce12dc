"""What a job and the platform say to each other beyond the records of `records.run`."""

from __future__ import annotations

from pydantic import Field

from osmosis.base.json_types import JsonObject
from osmosis.records.keys import Key
from osmosis.records.rollout import Message
from osmosis.records.run import CheckpointReport, LogLine, MetricPoint

from .body import Body, RequestBody
from .model_bodies import AnnouncedFile


class JobClaim(RequestBody):
    """The bearer is a ticket; the answer is the lease of its job."""

    run_id: str
    taker: str = Field(min_length=20, max_length=200, repr=False)
    """A random text that its process alone knows: it may ask again when the answer was lost."""


class JobLease(Body):
    run_id: str
    lease: str = Field(repr=False)


class JobSecretsTaker(RequestBody):
    """Who asks for the secrets: a random text that its process alone knows."""

    taker: str = Field(min_length=20, max_length=200, repr=False)


class JobSecrets(Body):
    """Handed over once for each lease."""

    values: dict[str, str] = Field(repr=False)


class JobArtifacts(Body):
    files: dict[str, int]
    """Bytes of each file that are there, by its path: less than the file has when it was cut off."""


class JobArtifact(Body):
    complete: bool


class JobFile(Body):
    """A file of a folder that a training job may have."""

    path: str
    """Below the folder, with `/`."""
    size: int
    """Bytes."""
    sha256: str


class JobFolder(Body):
    name: str
    """`model`, `tokenizer`, or a checkpoint: `step-000012`."""
    files: list[JobFile]
    reward: float | None = None
    """Of a checkpoint's weights, where it is known."""


class JobFolders(Body):
    """What a training job elsewhere needs that is on the platform's disk, or in its store."""

    folders: list[JobFolder]


class JobRewind(RequestBody):
    """A job goes on from the weights of a step, without the tokens of the rollouts that came after it."""

    step: int = Field(ge=-1)
    """-1: from the beginning."""


class JobLogs(RequestBody):
    lines: list[LogLine]


class JobMetrics(RequestBody):
    points: list[MetricPoint]


class JobCheckpoints(RequestBody):
    checkpoints: list[CheckpointReport]


class StoredExample(Body):
    """A rollout to imitate, for a job of `method = "sft"`."""

    place: int
    """Ask for what comes `after` this one next."""
    messages: list[Message]
    tools: list[JsonObject] | None = None


class JobModel(RequestBody):
    """The files of a model that a job made."""

    files: list[AnnouncedFile] = Field(max_length=1000)


class StoredKeys(Body):
    """The rollouts a platform has of a run."""

    keys: list[Key]
    """`[step, row_key, attempt]` each."""


class StoredCount(Body):
    stored: int
    """How many were new."""


class JobEnd(Body):
    status: str
    """The run's status after the job's last message."""
