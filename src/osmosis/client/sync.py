import time
from collections.abc import Callable

from osmosis.client.http import Section
from osmosis.errors import Conflict, NotFound, OsmosisError, PlatformError
from osmosis.records.api.workspaces import SyncedRollout, SyncedRolloutPage, SyncReport, SyncStarted
from osmosis.records.run.source import SyncState

Said = Callable[[str], None]

NOT_CONNECTED = ("GIT_REPOSITORY_NOT_CONNECTED", "GIT_SCOPE_REQUIRED", "WORKSPACE_SCOPE_HEADER_ACCESS_DENIED")
BUSY = ("Pending", "Syncing")
POLL_S = 0.5
TIMEOUT_S = 300.0


class Sync(Section):
    def state(self, *, rollouts: bool = False) -> SyncState:
        """Return synced branches and the latest events; with `rollouts` also the names found by the latest sync. An
        unknown repository is a state too, not an error."""
        try:
            state = self._read(SyncReport, "GET", "sync").state()
        except OsmosisError as error:
            if isinstance(error, NotFound) or error.details.get("platform_code") in NOT_CONNECTED:
                return SyncState(connected=False, error=error.message)
            raise
        if rollouts and state.commit_sha:
            state.rollouts = [row.name for row in self.rollouts()]
        return state

    def start(self) -> SyncStarted:
        return self._read(SyncStarted, "POST", "sync", json={})

    def rollouts(self, *, branch: str | None = None) -> list[SyncedRollout]:
        pages = self._pages(SyncedRolloutPage, "rollouts", params={"branch": branch})
        return [row for page in pages for row in page.rollouts]

    def wait_for(
        self, commit: str, branch: str | None = None, *, timeout_s: float = TIMEOUT_S, said: Said = lambda _: None
    ) -> SyncState:
        """Poll until the platform has this commit of the branch (None: the default branch), starting one sync. Raise
        PlatformError when the sync failed or time is over, Conflict when the platform synced another commit."""
        deadline = time.monotonic() + timeout_s
        started, last = False, ""
        while (state := self.state()).synced(branch) != commit:
            if state.status not in BUSY:
                if started and state.status == "Failed":
                    raise _failed(state)
                if started:
                    problem = f"the platform synced {branch or state.default_branch}, but not {commit[:10]}"
                    raise Conflict(problem, hint="git push, then osmosis sync --wait")
                self.start()
                started = True
            status = state.status or "no sync yet"
            if status != last:
                said(status)
                last = status
            if time.monotonic() > deadline:
                hint = "osmosis sync --status; the platform's log says more: osmosis platform logs"
                raise PlatformError(f"the platform has not synced {commit[:10]} after {timeout_s:g} s", hint=hint)
            time.sleep(POLL_S)
        return state

    def wait_until_done(self, *, timeout_s: float = TIMEOUT_S) -> SyncState:
        self.start()
        deadline = time.monotonic() + timeout_s
        while (state := self.state()).status in BUSY:
            if time.monotonic() > deadline:
                raise PlatformError(f"the sync has not finished after {timeout_s:g} s", hint="osmosis sync --status")
            time.sleep(POLL_S)
        if state.status == "Failed":
            raise _failed(state)
        return state


def _failed(state: SyncState) -> PlatformError:
    hint = "osmosis sync --status, then fix the problem and push again"
    return PlatformError(f"the sync failed: {state.error or 'no reason given'}", hint=hint)
