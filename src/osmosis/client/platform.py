from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

from .http import Http, Section

# Records take most of the start of a command that asks for none of them, and pydantic a fifth of `whoami`.
if TYPE_CHECKING:
    from osmosis.records.run.status import RunKind

    from .accounts import Accounts, SecretsClient, Workers, Workspaces
    from .datasets import Datasets, Models
    from .runs import EvalRuns, Runs, TrainingRuns
    from .sync import Sync
    from .transfer import Imports, Transfer


SECTIONS = {
    "accounts": "accounts:Accounts",
    "workspaces": "accounts:Workspaces",
    "secrets": "accounts:SecretsClient",
    "workers": "accounts:Workers",
    "sync": "sync:Sync",
    "datasets": "datasets:Datasets",
    "models": "datasets:Models",
    "evals": "runs:EvalRuns",
    "trainings": "runs:TrainingRuns",
    "imports": "transfer:Imports",
}


class PlatformClient(Http):
    """Calls to one platform, by sections. Close it, or use it as a context manager."""

    accounts: Accounts
    workspaces: Workspaces
    secrets: SecretsClient
    workers: Workers
    sync: Sync
    datasets: Datasets
    models: Models
    evals: EvalRuns
    trainings: TrainingRuns
    imports: Imports

    @property
    def scope(self) -> dict[str, str]:
        if self.workspace:
            return {"workspace": self.workspace}
        return {"identity": self.identity} if self.identity else {}

    @cached_property
    def transfer(self) -> Transfer:
        from .transfer import Transfer

        return Transfer(self.url, ca_file=self.ca_file)

    if not TYPE_CHECKING:  # to a type checker, other names stay unknown

        def __getattr__(self, name: str) -> Section:
            module, _, kind = SECTIONS.get(name, "").partition(":")
            if not kind:
                raise AttributeError(f"a platform client has no {name!r}")
            section: Section = getattr(import_module(f".{module}", __package__), kind)(self)
            setattr(self, name, section)
            return section

    def runs(self, kind: RunKind) -> Runs:
        from .runs import BenchmarkRuns

        return self.evals if kind == "eval" else BenchmarkRuns(self) if kind == "benchmark" else self.trainings

    def __enter__(self) -> PlatformClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
