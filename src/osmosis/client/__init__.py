"""The synchronous client of a platform (contract B), for any server that speaks it."""

from functools import cached_property

from osmosis.client import lean_httpx  # isort: skip  # noqa: F401 - before anything else imports httpx
from osmosis.client.accounts import Accounts, SecretsClient, Sync, Workers, Workspaces
from osmosis.client.datasets import Datasets, Models
from osmosis.client.http import Http
from osmosis.client.runs import BenchmarkRuns, EvalRuns, Runs, TrainingRuns
from osmosis.client.transfer import Imports, Transfer
from osmosis.records.run.status import RunKind

__all__ = ["PlatformClient"]


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

    accounts = cached_property(Accounts)
    workspaces = cached_property(Workspaces)
    sync = cached_property(Sync)
    datasets = cached_property(Datasets)
    secrets = cached_property(SecretsClient)
    workers = cached_property(Workers)
    models = cached_property(Models)
    evals = cached_property(EvalRuns)
    imports = cached_property(Imports)
    trainings = cached_property(TrainingRuns)

    def runs(self, kind: RunKind) -> Runs:
        return BenchmarkRuns(self) if kind == "benchmark" else self.trainings if kind == "training" else self.evals

    def __enter__(self) -> "PlatformClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
