"""The rows of repositories and their addresses; a URL with a credential is refused, so that none is stored or shown."""

import re
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.orm import Session, object_session

from osmosis.base.git import parse_git_url
from osmosis.errors import Conflict, NotFound, ValidationError
from osmosis.platform import tables
from osmosis.platform.db import count_of
from osmosis.platform.settings import PlatformSettings
from osmosis.platform.vault import Sealed, Vault
from osmosis.records.run.status import RunStatus

DEFAULT_BRANCH = "main"
_IDENTITY = re.compile(r"^[a-z0-9_][a-z0-9._-]*/[a-z0-9_][a-z0-9._-]*\Z")


@dataclass(frozen=True, slots=True)
class RepositoryUrl:
    url: str
    identity: str  # `owner/repo`, lower-case: the last two path segments
    local: bool


def parse_repository_url(url: str) -> RepositoryUrl:
    """Parse a git URL, stricter than git: no credential, no option, no relative path."""
    text = url.strip()
    if not text or text.startswith("-") or re.search(r"[\s\x00-\x1f\x7f]", text):
        raise refuse_url("is not a git URL")
    try:
        parsed = parse_git_url(text)
    except ValidationError as error:
        raise refuse_url(error.message.rpartition("' ")[2]) from None
    if parsed.has_credential:
        issues = [{"key": "repository_url", "message": "must not contain a user name or password"}]
        hint = "remove it, and keep the credential in a git credential helper or an ssh agent"
        raise ValidationError("the repository URL contains a credential", hint=hint, issues=issues)
    if parsed.scheme == "path" and not text.startswith("/"):
        raise refuse_url("must be an absolute path or a URL")
    if not parsed.identity or ".." in parsed.path.split("/") or not _IDENTITY.fullmatch(parsed.identity):
        raise refuse_url("does not end in <owner>/<repository>")
    return RepositoryUrl(text, parsed.identity, local=parsed.scheme in ("path", "file"))


def refuse_url(reason: str, *, hint: str = "") -> ValidationError:
    hint = hint or "use for example https://github.com/owner/repo.git or git@host:owner/repo.git"
    message = f"the repository URL {reason}"
    return ValidationError(message, hint=hint, issues=[{"key": "repository_url", "message": reason}])


def clone_url(settings: PlatformSettings, repository: tables.Repository) -> str:
    if repository.kind == "internal":
        return f"{settings.url}/git/{repository.full_name}.git"
    return repository.url


def find_for_workspace(session: Session, workspace_id: str) -> tables.Repository | None:
    return session.scalar(sa.select(tables.Repository).where(tables.Repository.workspace_id == workspace_id))


def get_for_workspace(session: Session, workspace_id: str) -> tables.Repository:
    repository = find_for_workspace(session, workspace_id)
    if repository is None:
        hint = "run `osmosis init --here` in the repository, or connect one on the workspace's page"
        raise NotFound("no repository is connected to this workspace", hint=hint)
    return repository


def get_credential(repository: tables.Repository, settings: PlatformSettings) -> str:
    session = object_session(repository)
    if repository.secret_name is None or session is None:
        return ""
    vault = Vault.open(settings.data_dir, settings.master_key.get_secret_value())
    return shared_secret(session, vault, repository.workspace_id, repository.secret_name)


def shared_secret(session: Session, vault: Vault, workspace_id: str, name: str) -> str:
    shared = (tables.Secret.scope == "workspace", tables.Secret.owner_id == workspace_id, tables.Secret.name == name)
    row = session.scalar(sa.select(tables.Secret).where(tables.Secret.workspace_id == workspace_id, *shared))
    if row is None:
        raise NotFound(f"the workspace has no secret named {name}", hint=f"osmosis secret set {name} --scope workspace")
    return vault.unseal(Sealed(row.key_id, row.nonce, row.ciphertext), row.about)


def find_internal(session: Session, full_name: str) -> tables.Repository | None:
    return session.scalar(sa.select(tables.Repository).filter_by(full_name=full_name, kind="internal"))


def add_internal(
    session: Session, settings: PlatformSettings, workspace: tables.Workspace, owner: str
) -> tables.Repository:
    """Add a hosted repository; call `mirror.prepare` after the commit. Conflict when the name is taken."""
    parts = (re.sub(r"[^a-z0-9._-]+", "-", part.lower()).strip("-.") for part in (owner, workspace.name))
    full_name = "/".join(part or "local" for part in parts)
    if find_internal(session, full_name) is not None:
        raise Conflict(f"the repository {full_name} belongs to another workspace", hint="choose another name")
    url = f"{settings.url}/git/{full_name}.git"
    repository = tables.Repository(workspace_id=workspace.id, kind="internal", full_name=full_name, url=url)
    return _add(session, settings, repository, settings.repositories_dir)


def _add(session: Session, settings: PlatformSettings, repository: tables.Repository, home: Path) -> tables.Repository:
    repository.id, repository.default_branch = tables.new_id(), DEFAULT_BRANCH
    repository.path = settings.stored(home / f"{repository.id}.git")
    session.add(repository)
    session.flush()
    return repository


def connect_external(
    session: Session,
    settings: PlatformSettings,
    workspace: tables.Workspace,
    url: str,
    *,
    trusted: bool,
    secret: str | None = None,
) -> tables.Repository:
    """Connect an external repository; the same URL again changes only how it is reached."""
    remote = parse_repository_url(url)
    former = find_for_workspace(session, workspace.id)
    if former is not None:
        if former.kind == "external" and former.url == remote.url:
            former.status, former.trusted, former.secret_name = "active", trusted, secret
            return former
        is_live = tables.Run.status.in_([RunStatus.PENDING.value, RunStatus.RUNNING.value])
        running = sa.select(tables.Run).where(tables.Run.repository_id == former.id, is_live)
        if open_runs := count_of(session, running):
            message = f"{open_runs} run(s) of {former.full_name} have not finished"
            raise Conflict(message, hint="wait for them to finish, or stop them first")
        session.delete(former)
        session.flush()
    repository = tables.Repository(workspace_id=workspace.id, kind="external", full_name=remote.identity)
    repository.url, repository.trusted, repository.secret_name = remote.url, trusted, secret
    return _add(session, settings, repository, settings.data_dir / "mirrors")
