"""`/ready` says whether requests can be served now; `/health` only that the process lives."""

from __future__ import annotations

import sqlalchemy as sa


def test_a_platform_is_ready_while_its_database_is_that_of_this_version(site) -> None:
    assert site.anonymous.get("/ready").json()["status"] == "ready"
    assert site.anonymous.get("/ready", headers={"Host": "10.0.0.7"}).status_code == 200
    with site.platform.db.write() as session:
        session.execute(sa.text("UPDATE alembic_version SET version_num = '0001'"))
    answer = site.anonymous.get("/ready")
    assert (answer.status_code, answer.json()["status"]) == (503, "unready")
    with site.platform.db.write() as session:
        session.execute(sa.text("DROP TABLE alembic_version"))
    assert site.anonymous.get("/ready").status_code == 503
    assert site.anonymous.get("/health").status_code == 200
