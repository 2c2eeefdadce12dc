"""Every page and every form, asked by whom they are not for: a stranger, a member of another workspace, a viewer.

The list is made of the routes themselves, so that a page that is added is attacked, too.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
import sqlalchemy as sa

from osmosis.platform import tables
from osmosis.platform.auth import tokens, users
from osmosis.platform.auth.tokens import hash_token
from osmosis.platform.web.templating import PageRoute
from osmosis.platform.workspaces import service as workspaces
from osmosis.records.base import utc_now
from support.platform_app import RunningPlatform, running_platform
from support.platform_data import a_job, a_worker, add_run

OWN = {"/{workspace}/secrets", "/{workspace}/secrets/delete"}
"""What viewers may post: their own secrets are theirs."""
FIELDS = {
    "scope": "workspace", "name": "X", "value": "y", "person": "local", "role": "owner", "handle": "local",
    "config": "x", "label": "right", "tags": "x", "file_name": "x.jsonl", "size": "10",
    "file_size": "10", "extension": "jsonl",
}  # fmt: skip


@dataclass
class Attacked:
    """A platform with something of everything in workspace `demo`."""

    platform: RunningPlatform
    ids: dict[str, str]
    outsider: str
    viewer: str

    def forms(self) -> Iterator[tuple[str, str, str]]:
        """Method, pattern and path of every page about something of the workspace."""
        for route in self.platform.app.router.routes:
            if isinstance(route, PageRoute) and (names := re.findall(r"\{(\w+)", route.path)):
                path = re.sub(r"\{(\w+)(:path)?\}", lambda found: self.ids.get(found[1], "x"), route.path)
                if {"workspace", "run_id", "dataset_id", "model_id", "worker_id"} & set(names):
                    yield from ((method, route.path, path) for method in sorted(route.methods - {"HEAD"}))

    def state(self) -> list[object]:
        """What an attack must not change."""
        with self.platform.parts.db.read() as session:
            counted = (
                tables.AuditEntry, tables.Member, tables.Invitation, tables.Run, tables.Dataset, tables.Secret,
                tables.Annotation, tables.SyncEvent, tables.Worker,
            )  # fmt: skip
            numbers = [session.scalar(sa.select(sa.func.count()).select_from(table)) for table in counted]
            run, worker = session.scalars(sa.select(tables.Run)).one(), session.scalars(sa.select(tables.Worker)).one()
            return [*numbers, run.status, run.tags, run.note, run.stop_requested_at, worker.draining, worker.removed_at]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    with running_platform(tmp_path_factory.mktemp("pages") / "data") as platform:
        parts = platform.parts
        with parts.db.write() as session:
            evil, looker = (
                users.create_user(session, name, email=f"{name}@example.com", name=name) for name in ("evil", "looker")
            )
            workspaces.create(session, evil, "elsewhere")
            session.add(tables.Member(workspace_id=platform.workspace_id, user_id=looker.id, role="viewer"))
            worker = a_worker(session, workspace_id=platform.workspace_id)
            dataset = tables.Dataset(workspace_id=platform.workspace_id, name="sums", format="jsonl", status="uploaded")
            model = tables.BaseModel(
                workspace_id=platform.workspace_id, name="tiny", status="ready", files=[], updated_at=utc_now()
            )
            session.add_all([dataset, model])
            session.flush()
            ids = {"dataset_id": dataset.id, "model_id": model.id, "worker_id": worker.id}
            outsider, viewer = (tokens.issue(session, one, "attack").text for one in (evil, looker))
        run_id = add_run(parts, platform.workspace_id, "secret-run", "finished", rows=[0])
        rest = {"person": "local", "name": "secret-run", "row": "0", "attempt": "0", "path": "rollouts/0/0"}
        ids = {**ids, **rest, "workspace": "demo", "run_id": run_id, "action": "delete"}
        yield Attacked(platform, ids, outsider, viewer)


def _ask(attacked: Attacked, method: str, path: str, token: str = "") -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    data = FIELDS if method == "POST" else None
    return httpx.request(method, attacked.platform.url + path, headers=headers, data=data, timeout=60)


def test_a_stranger_is_led_to_the_login_and_changes_nothing(attacked: Attacked) -> None:
    before, seen = attacked.state(), 0
    for method, pattern, path in attacked.forms():
        answer = _ask(attacked, method, path)
        assert (answer.status_code, answer.headers.get("location", "").partition("?")[0]) == (303, "/login"), pattern
        seen += 1
    assert seen > 30
    assert attacked.state() == before


def test_a_member_of_another_workspace_finds_nothing_and_changes_nothing(attacked: Attacked) -> None:
    before = attacked.state()
    for method, pattern, path in attacked.forms():
        answer = _ask(attacked, method, path, attacked.outsider)
        assert answer.status_code in (403, 404), (method, pattern, answer.status_code)
        assert "secret-run" not in answer.text.replace(path, ""), pattern
    assert attacked.state() == before


def test_a_viewer_looks_and_changes_nothing(attacked: Attacked) -> None:
    before = attacked.state()
    for method, pattern, path in attacked.forms():
        if method != "GET":
            answer = _ask(attacked, method, path, attacked.viewer)
            refused = (403,) if pattern not in OWN else (400, 403, 404)
            assert answer.status_code in refused, (method, pattern, answer.status_code)
    assert attacked.state() == before


def test_only_the_job_of_a_deployment_says_that_it_serves(attacked: Attacked) -> None:
    """Its starts count anew then, and requests are sent to where it says."""
    parts, lease = attacked.platform.parts, "osj_of-an-evaluation"
    run_id = add_run(parts, attacked.platform.workspace_id, "endless", "running", rows=[0])
    with parts.db.write() as session:
        run = session.get_one(tables.Run, run_id)
        job = a_job(run, state="held", lease_hash=hash_token(lease), lease_until=utc_now(), starts=3)
        session.add(job)
    said = {"stage": "serving", "endpoint": "http://127.0.0.1:1/v1"}
    url = f"{attacked.platform.url}/api/jobs/{run_id}/heartbeat"
    answer = httpx.post(url, json=said, headers={"Authorization": f"Bearer {lease}"}, timeout=60)
    assert answer.status_code == 200, answer.text
    with parts.db.write() as session:
        run = session.get_one(tables.Run, run_id)
        assert session.scalars(sa.select(tables.Job.starts).where(tables.Job.run_id == run_id)).one() == 3
        assert "endpoint" not in (run.progress or {})
        session.delete(run)
