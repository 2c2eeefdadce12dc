from __future__ import annotations

from functools import cached_property

from osmosis.client.accounts import Accounts, SecretsClient, Workers, Workspaces
from osmosis.client.datasets import Datasets, Models
from osmosis.client.http import Http
from osmosis.client.runs import BenchmarkRuns, EvalRuns, Runs, TrainingRuns
from osmosis.client.sync import Sync
from osmosis.client.transfer import Imports, Transfer
from osmosis.records.run.status import RunKind


class PlatformClient(Http):
    """Calls to one platform, by sections. Close it, or use it as a context manager."""

    @property
    def scope(self) -> dict[str, str]:
        if self.workspace:
            return {"workspace": self.workspace}
        return {"identity": self.identity} if self.identity else {}

    @cached_property
    def transfer(self) -> Transfer:
        return Transfer(self.url, ca_file=self.ca_file)

    @cached_property
    def accounts(self) -> Accounts:
        return Accounts(self)

    @cached_property
    def workspaces(self) -> Workspaces:
        return Workspaces(self)

    @cached_property
    def sync(self) -> Sync:
        return Sync(self)

    @cached_property
    def datasets(self) -> Datasets:
        return Datasets(self)

    @cached_property
    def secrets(self) -> SecretsClient:
        return SecretsClient(self)

    @cached_property
    def workers(self) -> Workers:
        return Workers(self)

    @cached_property
    def models(self) -> Models:
        return Models(self)

    @cached_property
    def evals(self) -> EvalRuns:
        return EvalRuns(self)

    @cached_property
    def imports(self) -> Imports:
        return Imports(self)

    @cached_property
    def trainings(self) -> TrainingRuns:
        return TrainingRuns(self)

    def runs(self, kind: RunKind) -> Runs:
        return self.evals if kind == "eval" else BenchmarkRuns(self) if kind == "benchmark" else self.trainings

    def __enter__(self) -> PlatformClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
