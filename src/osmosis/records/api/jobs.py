from pydantic import Field

from osmosis.base.jsonable import JsonObject
from osmosis.records.api.body import Body, RequestBody
from osmosis.records.api.models import AnnouncedFile
from osmosis.records.run.job import CheckpointReport, LogLine, MetricPoint
from osmosis.records.run.rollout import Message
from osmosis.records.run.rows import Key


class JobClaim(RequestBody):
    """The bearer is a ticket; the response is the lease of its job."""

    run_id: str
    taker: str = Field(min_length=20, max_length=200, repr=False)
    """Random text of this process: it may ask again when the response was lost."""


class JobLease(Body):
    run_id: str
    lease: str = Field(repr=False)


class JobSecretsTaker(RequestBody):
    """A random text known to the asking process alone."""

    taker: str = Field(min_length=20, max_length=200, repr=False)


class JobSecrets(Body):
    """Given once for each lease."""

    values: dict[str, str] = Field(repr=False)


class JobArtifacts(Body):
    files: dict[str, int]


class JobArtifact(Body):
    complete: bool


class JobFile(Body):
    path: str
    size: int
    sha256: str


class JobFolder(Body):
    name: str
    """`model`, `tokenizer`, or a checkpoint: `step-000012`."""
    files: list[JobFile]
    reward: float | None = None


class JobFolders(Body):
    """The files that a training job elsewhere needs from the platform's disk or store."""

    folders: list[JobFolder]


class JobRewind(RequestBody):
    """The job resumes from the weights of a step; later rollouts lose their tokens."""

    step: int = Field(ge=-1)


class JobLogs(RequestBody):
    lines: list[LogLine]


class JobMetrics(RequestBody):
    points: list[MetricPoint]


class JobCheckpoints(RequestBody):
    checkpoints: list[CheckpointReport]


class StoredExample(Body):
    place: int
    """Cursor: ask for what comes `after` it."""
    messages: list[Message]
    tools: list[JsonObject] | None = None
    rejected: list[Message] | None = None
    """A worse rollout of the same row (`dpo`)."""


class JobModel(RequestBody):
    files: list[AnnouncedFile] = Field(max_length=1000)


class StoredKeys(Body):
    keys: list[Key]
    """`[step, row_key, attempt]` each."""


class StoredCount(Body):
    stored: int


class JobEnd(Body):
    status: str
