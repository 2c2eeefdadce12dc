"""Bodies of the API: shown as they came, read from any server of the contract."""

from __future__ import annotations

from typing import Any

import pytest

from osmosis.records.contract.accounts import DeviceStart, Verified, WorkspaceList
from osmosis.records.contract.eval_bodies import EvalRunDetail, EvalRunPage, EvalRunRow
from osmosis.records.contract.repository import SyncReport
from osmosis.records.contract.run_bodies import FileAddresses
from osmosis.records.contract.uploads import DatasetDownload, UploadPlan

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
