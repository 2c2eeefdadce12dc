"""A page that follows something is told nothing more once its person may not see it."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.platform import tables
from osmosis.platform.auth import tokens, users
from osmosis.records.base import utc_now
from support.platform_app import running_platform
from support.platform_data import add_run


def leave_workspace(session: Session, user: tables.User) -> None:
    session.execute(sa.delete(tables.Member).where(tables.Member.user_id == user.id))


def end_session(session: Session, user: tables.User) -> None:
    session.execute(sa.update(tables.Token).where(tables.Token.user_id == user.id).values(revoked_at=utc_now()))


@pytest.mark.parametrize("lose_access", [leave_workspace, end_session])
def test_a_stream_ends_with_the_right_to_see_its_run(
    tmp_path: Path, lose_access: Callable[[Session, tables.User], None]
) -> None:
    with running_platform(tmp_path / "data", hosted=False) as platform:
        run_id = add_run(platform.parts, platform.workspace_id, status="running")
        with platform.parts.db.write() as session:
            ada = users.create_user(session, "ada", email="ada@example.com", name="Ada")
            session.add(tables.Member(workspace_id=platform.workspace_id, user_id=ada.id, role="viewer"))
            token = tokens.issue(session, ada, "browser").text
        address, headers = f"{platform.url}/runs/{run_id}/events", {"Authorization": f"Bearer {token}"}
        with httpx.stream("GET", address, headers=headers, timeout=60, trust_env=False) as stream:
            lines = stream.iter_lines()
            assert any("running" in line for line in lines)
            with platform.parts.db.write() as session:
                lose_access(session, ada)
            assert "event: end" not in list(lines), "it ends by itself; the browser asks again"
        assert httpx.get(address, headers=headers, trust_env=False).status_code in (401, 404)
