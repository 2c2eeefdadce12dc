from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from .http import Http

# Records take most of the start of a command that asks for none of them, and pydantic a fifth of `whoami`.
if TYPE_CHECKING:
    from osmosis.records.run.status import RunKind

    from .accounts import Accounts, SecretsClient, Workers, Workspaces
    from .datasets import Datasets, Models
    from .runs import EvalRuns, Runs, TrainingRuns
    from .sync import Sync
    from .transfer import Imports, Transfer


class PlatformClient(Http):
    """Calls to one platform, by sections. Close it, or use it as a context manager."""

    @property
    def scope(self) -> dict[str, str]:
        if self.workspace:
            return {"workspace": self.workspace}
        return {"identity": self.identity} if self.identity else {}

    @cached_property
    def transfer(self) -> Transfer:
        from .transfer import Transfer

        return Transfer(self.url, ca_file=self.ca_file)

    @cached_property
    def accounts(self) -> Accounts:
        from .accounts import Accounts

        return Accounts(self)

    @cached_property
    def workspaces(self) -> Workspaces:
        from .accounts import Workspaces

        return Workspaces(self)

    @cached_property
    def sync(self) -> Sync:
        from .sync import Sync

        return Sync(self)

    @cached_property
    def datasets(self) -> Datasets:
        from .datasets import Datasets

        return Datasets(self)

    @cached_property
    def secrets(self) -> SecretsClient:
        from .accounts import SecretsClient

        return SecretsClient(self)

    @cached_property
    def workers(self) -> Workers:
        from .accounts import Workers

        return Workers(self)

    @cached_property
    def models(self) -> Models:
        from .datasets import Models

        return Models(self)

    @cached_property
    def evals(self) -> EvalRuns:
        from .runs import EvalRuns

        return EvalRuns(self)

    @cached_property
    def imports(self) -> Imports:
        from .transfer import Imports

        return Imports(self)

    @cached_property
    def trainings(self) -> TrainingRuns:
        from .runs import TrainingRuns

        return TrainingRuns(self)

    def runs(self, kind: RunKind) -> Runs:
        from .runs import BenchmarkRuns

        return self.evals if kind == "eval" else BenchmarkRuns(self) if kind == "benchmark" else self.trainings

    def __enter__(self) -> PlatformClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
