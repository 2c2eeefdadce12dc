"""What people said, when it comes with an uploaded run: nobody is made to have said something."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import sqlalchemy as sa

from osmosis.platform import tables
from osmosis.platform.auth import users
from osmosis.platform.runs import rollouts
from osmosis.records.run.annotations import Annotation
from support.platform_data import add_run


def _say(author: str, row: int = 0) -> Annotation:
    when = datetime(2026, 11, 22, 10, tzinfo=timezone.utc)
    return Annotation(row_index=row, attempt=0, rollout_id=f"r-{row}", label="right", author=author, created_at=when)


def test_a_label_in_the_name_of_another_member_says_who_sent_it(site: Any) -> None:
    with site.platform.db.write() as session:
        workspace = session.scalars(sa.select(tables.Workspace)).one()
        grace = users.create_user(session, "grace", email="grace@example.com", name="Grace Hopper")
        ada = users.create_user(session, "ada", email="ada@example.com", name="Ada")
        for user in (ada, grace):
            session.add(tables.Member(workspace_id=workspace.id, user_id=user.id, role="member"))
    run_id = add_run(site.platform, workspace.id, "uploaded", "finished", rows=[0])
    said = [_say("grace hopper"), _say("GRACE", 1), _say("Ada", 2), _say("a grader elsewhere", 3)]
    for expected in (4, 0):
        with site.platform.db.write() as session:
            assert rollouts.merge_annotations(session, run_id, said, session.get(tables.User, ada.id)) == expected
    with site.platform.db.read() as session:
        stored = [one.author for one in rollouts.iterate_annotations(session, run_id)]
        senders = set(session.scalars(sa.select(tables.Annotation.author_id)))
    assert stored == ["grace hopper (sent by Ada)", "GRACE (sent by Ada)", "Ada", "a grader elsewhere"]
    assert senders == {ada.id}


def test_what_a_member_said_here_and_somebody_brings_back_is_not_said_again(site: Any) -> None:
    with site.platform.db.write() as session:
        workspace = session.scalars(sa.select(tables.Workspace)).one()
        grace = users.create_user(session, "grace", email="grace@example.com", name="Grace")
        session.add(tables.Member(workspace_id=workspace.id, user_id=grace.id, role="member"))
    run_id = add_run(site.platform, workspace.id, "uploaded", "finished", rows=[0])
    with site.platform.db.write() as session:
        rollouts.add_annotation(session, run_id, _say("Grace"), grace.id)
    with site.platform.db.write() as session:
        assert rollouts.merge_annotations(session, run_id, [_say("Grace")], None) == 0
