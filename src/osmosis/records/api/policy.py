"""The table of roles and actions, for services, pages and the git host. Each role may do what those before it may.
Actions outside of a workspace (people, quotas, this machine) are for operators, whatever their roles."""

from dataclasses import dataclass
from typing import Literal, get_args

Role = Literal["viewer", "member", "admin", "owner"]
ROLES: tuple[Role, ...] = get_args(Role)
Action = Literal[
    "read", "run", "data", "delete", "push", "secrets.own", "secrets.shared", "repository", "members", "workers",
    "audit", "owners", "workspace",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class PolicyRule:
    action: Action
    least: Role
    about: str


POLICY: tuple[PolicyRule, ...] = (
    PolicyRule("read", "viewer", "see and download runs, rollouts, logs, datasets and models; clone and fetch"),
    PolicyRule(
        "run", "member", "submit, upload, stop, retry, resume, tag and annotate runs; serve rollouts; deploy models"
    ),
    PolicyRule("data", "member", "upload datasets and models"),
    PolicyRule("delete", "member", "delete runs, datasets and models"),
    PolicyRule("push", "member", "push, and start a sync"),
    PolicyRule("secrets.own", "member", "set personal secrets, and see the names of all"),
    PolicyRule("secrets.shared", "admin", "set workspace secrets"),
    PolicyRule("repository", "admin", "connect an external repository, and set its key and webhook"),
    PolicyRule("members", "admin", "invite, change and remove viewers, members and admins"),
    PolicyRule("workers", "admin", "create tokens for workers"),
    PolicyRule("audit", "admin", "read the audit log"),
    PolicyRule("owners", "owner", "appoint and remove owners"),
    PolicyRule("workspace", "owner", "rename and delete the workspace"),
)
RULES: dict[Action, PolicyRule] = {rule.action: rule for rule in POLICY}


def may(role: str, action: Action) -> bool:
    return role in ROLES and ROLES.index(role) >= ROLES.index(RULES[action].least)


def markdown() -> str:
    lines = ["| to ... | " + " | ".join(ROLES) + " |", "| --- |" + " --- |" * len(ROLES)]
    for rule in POLICY:
        lines.append(
            f"| {rule.about} | " + " | ".join("yes" if may(role, rule.action) else "" for role in ROLES) + " |"
        )
    return "\n".join(lines)
