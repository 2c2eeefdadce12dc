"""The tables, in five files: `people`, `code`, `data`, `run_rows`, `machines`. Rows store; rules are in `services`.

Used as `tables.Run`, so that a row is never mistaken for the record of the same name.
"""

from .base import Base, UtcDateTime, new_id
from .code import Repository, SyncedRollout, SyncEvent
from .data import BaseModel, Dataset, DatasetLog, Upload
from .machines import Worker
from .people import (
    AuditEntry,
    DeviceCode,
    Invitation,
    LinkedIdentity,
    Member,
    RolloutServer,
    Secret,
    Token,
    User,
    Workspace,
)
from .run_rows import (
    Annotation,
    Checkpoint,
    Import,
    Imported,
    ImportFile,
    Job,
    MetricPoint,
    QueueState,
    Rollout,
    Run,
    RunEvent,
    RunLog,
    StoredConfig,
    StoredEvaluation,
    StoredExperiment,
    StoredProgress,
)

__all__ = [
    "Annotation",
    "AuditEntry",
    "Base",
    "BaseModel",
    "Checkpoint",
    "Dataset",
    "DatasetLog",
    "DeviceCode",
    "Import",
    "ImportFile",
    "Imported",
    "Invitation",
    "Job",
    "LinkedIdentity",
    "Member",
    "MetricPoint",
    "QueueState",
    "Repository",
    "Rollout",
    "RolloutServer",
    "Run",
    "RunEvent",
    "RunLog",
    "Secret",
    "StoredConfig",
    "StoredEvaluation",
    "StoredExperiment",
    "StoredProgress",
    "SyncEvent",
    "SyncedRollout",
    "Token",
    "Upload",
    "User",
    "UtcDateTime",
    "Worker",
    "Workspace",
    "new_id",
]
