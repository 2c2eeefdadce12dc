from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import httpx

from .http import Http, Warn

# Records take most of the start of a command that asks for none of them, and pydantic a fifth of `whoami`.
if TYPE_CHECKING:
    from osmosis.records.run.status import RunKind

    from .accounts import Accounts, SecretsClient, Workers, Workspaces
    from .datasets import Datasets, Models
    from .runs import EvalRuns, Runs, TrainingRuns
    from .sync import Sync
    from .transfer import Imports, Transfer


class PlatformClient:
    """Calls to one platform. Close it, or use it as a context manager. `identity` (`owner/repo`) or `workspace` selects
    the workspace. `transport` replaces the network in tests. `warn(code, message)` receives the platform's notices
    about versions. `auth_hint` is what to type when the platform refuses a token that no login replaces. `ca_file`
    replaces the public certificates."""

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        identity: str | None = None,
        workspace: str | None = None,
        transport: httpx.BaseTransport | None = None,
        warn: Warn | None = None,
        auth_hint: str = "",
        ca_file: str = "",
    ) -> None:
        self.url = url
        self.http = Http(
            url, token, identity=identity, workspace=workspace, transport=transport, warn=warn, ca_file=ca_file
        )
        self._ca_file = ca_file
        self.http.auth_hint = auth_hint

    @property
    def scope(self) -> dict[str, str]:
        if self.http.workspace:
            return {"workspace": self.http.workspace}
        return {"identity": self.http.identity} if self.http.identity else {}

    @cached_property
    def transfer(self) -> Transfer:
        from .transfer import Transfer

        return Transfer(self.url, ca_file=self._ca_file)

    @cached_property
    def accounts(self) -> Accounts:
        from .accounts import Accounts

        return Accounts(self.http)

    @cached_property
    def workspaces(self) -> Workspaces:
        from .accounts import Workspaces

        return Workspaces(self.http)

    @cached_property
    def sync(self) -> Sync:
        from .sync import Sync

        return Sync(self.http)

    @cached_property
    def datasets(self) -> Datasets:
        from .datasets import Datasets

        return Datasets(self.http, self.transfer)

    @cached_property
    def secrets(self) -> SecretsClient:
        from .accounts import SecretsClient

        return SecretsClient(self.http)

    @cached_property
    def workers(self) -> Workers:
        from .accounts import Workers

        return Workers(self.http)

    @cached_property
    def models(self) -> Models:
        from .datasets import Models

        return Models(self.http, self.transfer)

    @cached_property
    def evals(self) -> EvalRuns:
        from .runs import EvalRuns

        return EvalRuns(self.http)

    @cached_property
    def imports(self) -> Imports:
        from .transfer import Imports

        return Imports(self.http, self.transfer)

    @cached_property
    def trainings(self) -> TrainingRuns:
        from .runs import TrainingRuns

        return TrainingRuns(self.http)

    def runs(self, kind: RunKind) -> Runs:
        from .runs import BenchmarkRuns

        return self.evals if kind == "eval" else BenchmarkRuns(self.http) if kind == "benchmark" else self.trainings

    def healthy(self) -> bool:
        return self.http.healthy()

    def close(self) -> None:
        self.http.close()

    def __enter__(self) -> PlatformClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
