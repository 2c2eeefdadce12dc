"""The table of roles and actions: one row an action, roles that only grow, and the page that shows it."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from osmosis.records.policy import POLICY, ROLES, Action, markdown, may

TOP = Path(__file__).parents[3]


def test_every_action_has_one_row_and_more_is_never_less() -> None:
    assert [rule.action for rule in POLICY] == list(get_args(Action))
    for rule in POLICY:
        allowed = [may(role, rule.action) for role in ROLES]
        assert allowed == sorted(allowed)
        assert allowed[-1]


def test_a_role_that_is_not_known_may_nothing() -> None:
    assert not any(may("guest", rule.action) for rule in POLICY)


def test_what_a_viewer_and_an_admin_may_is_what_was_meant() -> None:
    assert {rule.action for rule in POLICY if may("viewer", rule.action)} == {"read"}
    assert {rule.action for rule in POLICY if not may("admin", rule.action)} == {"owners"}
    only_admins = {rule.action for rule in POLICY if rule.least == "admin"}
    assert only_admins == {"secrets.shared", "repository", "members", "workers", "audit"}


def test_the_page_shows_the_table() -> None:
    assert markdown() in (TOP / "docs" / "security.md").read_text()
