"""The tables, one file per noun. Rows store; rules are in `services`.

Used as `tables.Run`, so that a row is never mistaken for the record of the same name.
"""

from .base import Base, UtcDateTime, new_id
from .checkpoints import Checkpoint
from .datasets import Dataset, DatasetLog, Upload
from .imports import Import, ImportFile
from .repositories import Repository, SyncedRollout, SyncEvent
from .rollout_servers import RolloutServer
from .rollouts import Rollout
from .runs import MetricPoint, Run, RunEvent, RunLog
from .secrets import Secret
from .users import DeviceCode, Token, User
from .workspaces import Member, Workspace

__all__ = [
    "Base",
    "Checkpoint",
    "Dataset",
    "DatasetLog",
    "DeviceCode",
    "Import",
    "ImportFile",
    "Member",
    "MetricPoint",
    "Repository",
    "Rollout",
    "RolloutServer",
    "Run",
    "RunEvent",
    "RunLog",
    "Secret",
    "SyncEvent",
    "SyncedRollout",
    "Token",
    "Upload",
    "User",
    "UtcDateTime",
    "Workspace",
    "new_id",
]
