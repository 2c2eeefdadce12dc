"""Bodies of the API and of the protocol: read in every spelling, shown as they came; roles, limits and ids."""

from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from osmosis.records.api.accounts import POLICY, ROLES, Action, DeviceStart, Verified, WorkspaceList, markdown, may
from osmosis.records.api.datasets import DatasetDownload, UploadPlan
from osmosis.records.api.runs import EvalRunDetail, EvalRunPage, EvalRunRow, FileAddresses
from osmosis.records.api.workspaces import SyncReport
from osmosis.records.protocol.messages import RolloutInit
from osmosis.records.sandbox import LIMITS, SandboxSettings, parse_limit

RUN = {"id": "1", "name": "r-1", "status": "finished"}


def test_a_body_is_shown_as_it_came() -> None:
    sent = {**RUN, "results": None, "model": {"name": "m", "vendor": {"a": None}}, "notes_of_another_server": [1]}
    assert EvalRunRow.model_validate(sent).to_dict() == sent


def test_a_key_that_was_not_given_stays_away() -> None:
    assert Verified(expires_at=None).to_dict() == {"expires_at": None}
    assert DeviceStart(device_name="box").to_dict() == {"deviceName": "box"}


@pytest.mark.parametrize("body", [{}, {"workspaces": None}])
def test_a_list_that_is_missing_is_empty(body: dict[str, Any]) -> None:
    assert WorkspaceList.model_validate(body).workspaces == []
    assert EvalRunPage.model_validate({}).rows == []


@pytest.mark.parametrize(
    "body",
    [
        {
            "repository": {"full_name": "o/r"}, "default_branch": "main", "last_synced_commit_sha": "c1",
            "branches": [{"name": "main", "commit_sha": "c1"}], "events": [{"status": "Success", "error": "e"}],
        },
        {
            "repo_full_name": "o/r", "default_branch": "main", "last_synced_commit": "c1", "branches": {"main": "c1"},
            "status": "Success", "error": "e",
        },
        {
            "repository": {"repo_full_name": "o/r", "default_branch": "main"}, "commit_sha": "c1",
            "branches": {"main": "c1", "gone": None}, "status": "Success", "error": "e", "connected": True,
        },
    ],
)  # fmt: skip
def test_a_sync_is_read_in_every_spelling(body: dict[str, Any]) -> None:
    state = SyncReport.model_validate(body).state()
    assert (state.connected, state.repository, state.default_branch) == (True, "o/r", "main")
    assert (state.commit_sha, state.branches, state.status, state.error) == ("c1", {"main": "c1"}, "Success", "e")


def test_a_repository_that_is_not_connected_says_so() -> None:
    assert SyncReport.model_validate({"connected": False}).state().connected is False
    assert SyncReport.model_validate({}).state().connected is False


@pytest.mark.parametrize("key", ["items", "files", "urls"])
@pytest.mark.parametrize("spelling", ["url", "presignedUrl", "presigned_url"])
def test_addresses_are_read_in_every_spelling(key: str, spelling: str) -> None:
    found = FileAddresses.model_validate({key: [{"path": "a", spelling: "http://x/a"}]})
    assert [(each.path, each.url) for each in found.items] == [("a", "http://x/a")]


def test_an_address_of_an_upload_is_read_in_both_spellings() -> None:
    for spelling in ("presigned_url", "presignedUrl"):
        assert DatasetDownload.model_validate({spelling: "http://x"}).presigned_url == "http://x"
        assert UploadPlan.model_validate({spelling: "http://x"}).presigned_url == "http://x"


def test_a_report_of_another_server_is_not_needed() -> None:
    seen = EvalRunDetail.model_validate({"eval_run": RUN, "report": {"surprise": 1}})
    assert (seen.report, seen.run.over, seen.unscored) == (None, True, False)


@pytest.mark.parametrize("status", ["finished", "failed", "stopped", "crashed", "killed", "error"])
def test_a_run_in_its_last_status_is_over(status: str) -> None:
    assert EvalRunRow.model_validate({**RUN, "status": status}).over
    assert not EvalRunRow.model_validate({**RUN, "status": "queued"}).over


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
    assert {rule.action for rule in POLICY if not may("admin", rule.action)} == {"owners", "workspace"}
    only_admins = {rule.action for rule in POLICY if rule.least == "admin"}
    assert only_admins == {"secrets.shared", "repository", "members", "workers", "audit"}


def test_the_page_shows_the_table() -> None:
    assert markdown() in (TOP / "docs" / "security.md").read_text()


def test_every_limit_is_a_field() -> None:
    assert set(LIMITS) <= set(SandboxSettings.model_fields)
    assert SandboxSettings.model_validate(dict([parse_limit("memory_mb=4096"), parse_limit("cpus=1.5")])).cpus == 1.5


@pytest.mark.parametrize("text", ["memory_mb", "memory=4", "allow=x", "=3"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not NAME=VALUE"):
        parse_limit(text)


def init(**fields: object) -> RolloutInit:
    return RolloutInit.model_validate(
        {"initial_messages": [], "chat_completions_url": "http://127.0.0.1:1/v1", **fields}
    )


@pytest.mark.parametrize("bad", ["", ".", "..", "../evil", "a/b", "a\\b", "a b", "a\n", "x" * 257, "%2e%2e/é"])
def test_ids_that_could_leave_a_folder_are_refused(bad: str) -> None:
    with pytest.raises(ValidationError):
        init(rollout_id=bad)


@pytest.mark.parametrize("good", ["eval-3-run-0", "a.b_c:d@e", "x" * 256])
def test_ordinary_ids_pass(good: str) -> None:
    assert init(rollout_id=good).rollout_id == good


def test_an_empty_model_key_is_refused_and_a_missing_one_is_not() -> None:
    with pytest.raises(ValidationError, match="llm_api_key"):
        init(llm_api_key="")
    assert init().llm_api_key is None


@pytest.mark.parametrize("bad", [0, -1, float("inf"), float("nan")])
def test_timeouts_are_positive_and_finite(bad: float) -> None:
    with pytest.raises(ValidationError):
        init(agent_timeout_sec=bad)
