"""Which names a workspace may have: the same rule on the command line, before a folder is made, and on the platform."""

from __future__ import annotations

import re

from osmosis.errors import ValidationError

WORKSPACE_NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,62}$")
RESERVED = {
    "api", "assets", "audit", "audit.jsonl", "auth", "cli-auth", "compare", "compare.json", "datasets",
    "device", "devices", "docs", "evals", "git", "health", "help", "history",
    "history.json", "hooks", "login",
    "logout", "metrics", "models", "openapi.json", "platform", "ready", "repository", "robots.txt", "rollouts",
    "rollout-servers", "runs", "secrets", "servers", "settings", "static", "status", "tokens", "users", "v1",
    "workers", "workers.json", "workspaces",
}  # fmt: skip
"""First words of addresses, in use or to come: a workspace's pages start with its name. A test knows the routes."""


def check_workspace_name(name: str, *, command: str = "") -> None:
    """Raises ValidationError, with a name that could be had; `command` takes that name in the hint."""
    if name in RESERVED or name.endswith(".git"):
        better = f"my-{name.removesuffix('.git')}"[:63]
        raise ValidationError(
            f"{name!r} cannot be the name of a workspace: the platform's own addresses use it",
            hint=command.format(better) if command else f"choose another name, for example {better}",
            field="name",
        )
    if not WORKSPACE_NAME.match(name):
        better = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._")[:63] or "my-workspace"
        raise ValidationError(
            f"workspace name {name!r}: use small letters, digits, - _ and ., at most 63, a letter or digit first",
            hint=command.format(better) if command else f"choose another name, for example {better}",
            field="name",
        )
