"""The synchronous client of a platform (contract B), for any server that speaks it."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if "httpx" not in sys.modules:
    # Without its own command line, which loads rich, pygments and click: a quarter of what `osmosis whoami` takes.
    sys.modules["httpx._main"] = None  # type: ignore[assignment]  # None keeps a module from being imported
    import httpx  # noqa: F401 - imported for what it loads

    del sys.modules["httpx._main"]

from osmosis.client.http import Http
from osmosis.records.run.status import RunKind

if TYPE_CHECKING:
    from osmosis.client.accounts import Accounts, Audit, Members, People, SecretsClient, Sync, Workspaces
    from osmosis.client.files import Datasets, Imports, Models, Transfer
    from osmosis.client.runs import BenchmarkRuns, EvalRuns, Runs, TrainingRuns, Workers

__all__ = ["PlatformClient"]

_MODULE_OF = {
    **dict.fromkeys(("accounts", "workspaces", "members", "people", "audit", "sync", "secrets"), "accounts"),
    **dict.fromkeys(("datasets", "imports", "models", "transfer"), "files"),
    **dict.fromkeys(("evals", "trainings", "benchmarks", "workers"), "runs"),
}


class PlatformClient(Http):
    """Each section is imported when it is first used: the records of all of them are a third of `osmosis whoami`."""

    accounts: "Accounts"
    workspaces: "Workspaces"
    members: "Members"
    people: "People"
    audit: "Audit"
    sync: "Sync"
    secrets: "SecretsClient"
    datasets: "Datasets"
    imports: "Imports"
    models: "Models"
    evals: "EvalRuns"
    trainings: "TrainingRuns"
    benchmarks: "BenchmarkRuns"
    workers: "Workers"

    transfer: "Transfer"

    def __getattr__(self, name: str) -> object:
        if name not in _MODULE_OF:
            raise AttributeError(f"a platform client has no {name!r}")
        section = getattr(import_module(f"osmosis.client.{_MODULE_OF[name]}"), PlatformClient.__annotations__[name])(
            self
        )
        setattr(self, name, section)
        return section

    @property
    def scope(self) -> dict[str, str]:
        if self.workspace:
            return {"workspace": self.workspace}
        return {"identity": self.identity} if self.identity else {}

    def runs(self, kind: RunKind) -> "Runs":
        return self.benchmarks if kind == "benchmark" else self.trainings if kind == "training" else self.evals

    def __enter__(self) -> "PlatformClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
