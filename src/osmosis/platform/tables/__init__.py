"""The tables, in four files: `people`, `code`, `data`, `run_rows`. Rows store; rules are in `services`.

Used as `tables.Run`, so that a row is never mistaken for the record of the same name.
"""

from .base import Base, UtcDateTime, new_id
from .code import Repository, SyncedRollout, SyncEvent
from .data import BaseModel, Dataset, DatasetLog, Upload
from .people import DeviceCode, Member, RolloutServer, Secret, Token, User, Workspace
from .run_rows import (
    Checkpoint,
    Import,
    Imported,
    ImportFile,
    MetricPoint,
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
    "Base",
    "BaseModel",
    "Checkpoint",
    "Dataset",
    "DatasetLog",
    "DeviceCode",
    "Import",
    "ImportFile",
    "Imported",
    "Member",
    "MetricPoint",
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
    "Workspace",
    "new_id",
]
