"""A platform as the command line sees it: one small class per noun, each method one call of contract B.

Answers are records of `records.contract`; each noun is loaded when it is used, because records take longer to load
than a call takes. Deciding, asking and drawing are the command line's work.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from .http import Http, Warn
from .lean_httpx import httpx

if TYPE_CHECKING:
    from osmosis.records.run_kind import RunKind

    from .accounts import Accounts, Workspaces
    from .datasets import Datasets
    from .eval_runs import EvalRuns
    from .imports import Imports
    from .models import Models
    from .runs import Runs
    from .secrets import SecretsClient
    from .submits import Submits
    from .sync import Sync
    from .training_runs import TrainingRuns
    from .transfer import Transfer
    from .workers import Workers


class PlatformClient:
    """Calls to one platform. Close it, or use it as a context manager.

    `identity` (`owner/repo`) or `workspace` says for which workspace one speaks. `transport` replaces the
    network in tests. `warn(code, message)` receives what the platform says about versions. `auth_hint` is what to type
    when the platform does not take the token, for one that no login replaces. `ca_file` names the certificates to know
    the platform by, in the place of those that everybody trusts.
    """

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
        """Which workspace is spoken for: `{"workspace": name}`, `{"identity": owner/repo}` or `{}`."""
        if self.http.workspace:
            return {"workspace": self.http.workspace}
        return {"identity": self.http.identity} if self.http.identity else {}

    @cached_property
    def transfer(self) -> Transfer:
        """Moves files to and from addresses that the platform hands out."""
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
        from .secrets import SecretsClient

        return SecretsClient(self.http)

    @cached_property
    def workers(self) -> Workers:
        from .workers import Workers

        return Workers(self.http)

    @cached_property
    def models(self) -> Models:
        from .models import Models

        return Models(self.http, self.transfer)

    @cached_property
    def evals(self) -> EvalRuns:
        from .eval_runs import EvalRuns

        return EvalRuns(self.http)

    @cached_property
    def imports(self) -> Imports:
        from .imports import Imports

        return Imports(self.http, self.transfer)

    @cached_property
    def trainings(self) -> TrainingRuns:
        from .training_runs import TrainingRuns

        return TrainingRuns(self.http)

    @cached_property
    def submits(self) -> Submits:
        from .submits import Submits

        return Submits(self.http)

    def runs(self, kind: RunKind) -> Runs:
        """The runs of a kind."""
        return self.evals if kind == "eval" else self.trainings

    def healthy(self) -> bool:
        """Does the platform answer."""
        return self.http.healthy()

    def close(self) -> None:
        self.http.close()

    def __enter__(self) -> PlatformClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
