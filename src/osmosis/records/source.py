"""What git and the platform know about the code of a workspace: facts, no rules and no credentials.

`workspace.git` fills these records in, `workspace.preflight` judges them, a submitted run stores them.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field, field_validator

from osmosis.base.json_types import JsonObject

from .base import Record


class Source(Record):
    """The state of a working tree, as one `git status` sees it. Paths are relative to `root`, with `/`."""

    root: str
    """Absolute path of the working tree (of this worktree, when there are several)."""
    branch: str | None = None
    """The branch checked out; None when detached."""
    commit: str | None = None
    """Full commit of HEAD; None before the first commit."""
    detached: bool = False
    upstream: str | None = None
    """`origin/main`: what the branch follows."""
    ahead: int | None = None
    """Commits here that the upstream does not have; None when there is no upstream, or it is gone."""
    behind: int | None = None
    """Commits of the upstream that are not here."""
    dirty: list[str] = Field(default_factory=list)
    """Tracked files with changes, staged or not, conflicts included."""
    conflicts: list[str] = Field(default_factory=list)
    """Those of them that a merge or rebase left for the person to resolve."""
    operation: str | None = None
    """What git is in the middle of: `rebase`, `merge`, `cherry-pick`, `revert`, `am` or `bisect`."""
    untracked: list[str] = Field(default_factory=list)
    """Files git does not know and does not ignore."""
    remote_url: str | None = None
    """URL of `origin` with any credentials removed."""
    remote_host: str | None = None
    identity: str | None = None
    """`owner/repo` of the remote: the last two segments of its path, lower-case."""
    default_branch: str | None = None
    """The remote's default branch, as far as it is known here."""
    prefix: str = ""
    """Folder of the workspace inside the repository, with a trailing `/`; empty at the top."""


class FileFact(Record):
    """One file and its size in bytes."""

    path: str
    size: int


class RolloutFiles(Record):
    """What git holds under one rollout folder."""

    rollout: str
    tracked: int = 0
    """Files under version control."""
    submodules: list[str] = Field(default_factory=list)
    lfs: list[str] = Field(default_factory=list)
    """Files stored as Git LFS pointers: a checkout without LFS gets the pointer, not the content."""
    large: list[FileFact] = Field(default_factory=list)
    """Files over the size that makes checkouts slow."""


class PinnedCommit(Record):
    """A `commit_sha` of a config, looked up in the local repository."""

    asked: str
    found: str | None = None
    """The full commit, when the local repository has exactly one that starts so."""
    ambiguous: bool = False
    on_remote: bool | None = None
    """Whether a remote branch contains it; None when that is not known here."""
    has_entrypoint: bool | None = None
    """Whether it contains the rollout's entrypoint; None when the commit is not here."""


class FoundName(Record):
    """Something that a sync found, by kind: `rollout`, `config`, `reward_fn`, `reward_rubric`, `mcp`."""

    kind: str
    name: str


class SyncState(Record):
    """What the platform has of the repository."""

    connected: bool = True
    """The platform knows the repository."""
    repository: str | None = None
    default_branch: str | None = None
    commit_sha: str | None = None
    """Latest synced commit of the default branch."""
    branches: dict[str, str] = Field(default_factory=dict)
    """Branch -> its latest synced commit."""
    status: str | None = None
    """Of the latest sync event: Pending, Syncing, Success or Failed."""
    error: str | None = None
    rollouts: list[str] = Field(default_factory=list)
    """Names found by the latest sync of the default branch."""
    found: list[FoundName] = Field(default_factory=list)
    """What that sync found, tools, reward functions and rubrics included; empty where a platform does not say."""
    events: list[JsonObject] = Field(default_factory=list)
    """Newest first."""

    def synced(self, branch: str | None) -> str | None:
        """The latest synced commit of a branch, or of the default branch."""
        if branch is None or branch == self.default_branch:
            return self.branches.get(branch or self.default_branch or "") or self.commit_sha
        return self.branches.get(branch)

    def knows(self, commit: str) -> bool:
        """Whether a commit (full or abbreviated) is the synced state of some branch or was synced before."""
        known = {*self.branches.values(), self.commit_sha or ""}
        known.update(str(e.get("commit_sha") or "") for e in self.events if e.get("status") == "Success")
        return any(k.startswith(commit.lower()) for k in known if k)


MAX_DIFF = 200_000
"""Characters of a snapshot's diff that are sent and stored."""


class SnapshotNote(Record):
    """What was not committed when a working tree was submitted as it was. The code itself is a commit."""

    parent: str | None = Field(default=None, max_length=64)
    """The commit that the working tree stood on."""
    files: list[str] = Field(default_factory=list)
    """What differs from it."""
    diff: str = ""
    """How, cut after `MAX_DIFF` characters."""

    @field_validator("diff")
    @classmethod
    def _cut(cls, value: str) -> str:
        return value[:MAX_DIFF]

    @classmethod
    def of_request(cls, body: Mapping[str, object]) -> tuple[dict[str, object], SnapshotNote | None]:
        """The body of a submit without its snapshot, and the snapshot: `snapshot`, or where earlier clients put it
        (`advanced_config.snapshot`). Raises pydantic's ValidationError."""
        rest = dict(body)
        found = rest.pop("snapshot", None)
        advanced = rest.get("advanced_config")
        if isinstance(advanced, dict) and "snapshot" in advanced:
            rest["advanced_config"] = {key: value for key, value in advanced.items() if key != "snapshot"}
            found = found or advanced["snapshot"]
        return rest, None if found is None else cls.model_validate(found)
