"""The synchronous client of a platform (contract B), for any server that speaks it."""

import sys
from functools import cached_property

if "httpx" not in sys.modules:
    # Without its own command line, which loads rich, pygments and click: a quarter of what `osmosis whoami` takes.
    sys.modules["httpx._main"] = None  # type: ignore[assignment]  # None keeps a module from being imported
    import httpx  # noqa: F401 - imported for what it loads

    del sys.modules["httpx._main"]

from osmosis.client.accounts import Accounts, Audit, Members, People, SecretsClient, Sync, Workers, Workspaces
from osmosis.client.files import Datasets, Imports, Models, Transfer
from osmosis.client.http import Http
from osmosis.client.runs import BenchmarkRuns, EvalRuns, Runs, TrainingRuns
from osmosis.records.run.status import RunKind

__all__ = ["PlatformClient"]


class PlatformClient(Http):
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
    members = cached_property(Members)
    people = cached_property(People)
    audit = cached_property(Audit)
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
