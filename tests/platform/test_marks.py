"""Tags, notes, pins and names of runs: by the API, on the pages, in lists."""

from __future__ import annotations

import threading

import pytest

from osmosis.errors import Conflict
from osmosis.platform import tables
from osmosis.platform.auth import tokens, users
from osmosis.platform.runs import lifecycle
from osmosis.platform.web.session import SESSION_COOKIE, csrf_of
from osmosis.records.run.annotations import MarkChange

EXPERIMENT = {"rollout": "multiply", "entrypoint": "main.py", "model_path": "offline/x", "dataset": "sums"}
CONFIG = {"experiment_config": EXPERIMENT, "evaluation_config": {"limit": 4}}


def submit(site, **more: object) -> str:
    return site.json("POST", "eval-runs", json={**CONFIG, **more})["name"]


def names(site, query: str = "") -> list[str]:
    return [run["name"] for run in site.json("GET", f"eval-runs{query}")["eval_runs"]]


def test_runs_that_share_a_tag_are_a_set(ready) -> None:
    first = submit(ready, tags=["nightly", "a/b", "nightly"])
    second = submit(ready, tags=["nightly"])
    third = submit(ready, tags=["nightly-2"])
    assert names(ready, "?tag=nightly") == [second, first]
    assert names(ready, "?tag=night") == []
    assert names(ready, "?tag=%22") == []
    assert names(ready) == [third, second, first]
    assert ready.json("GET", f"eval-runs/{first}")["eval_run"]["tags"] == ["nightly", "a/b"]


@pytest.mark.parametrize("tags", [["two words"], ["x" * 70], [""], "nightly", [str(n) for n in range(21)], [{"a": 1}]])
def test_a_tag_that_is_none_is_refused_before_anything_is_stored(shared, tags: object) -> None:
    answer = shared.http.post("/api/cli/eval-runs", json={**CONFIG, "tags": tags})
    assert (answer.status_code, "tags: " in answer.text) == (400, True), answer.text
    assert names(shared) == []


def test_what_is_left_out_of_a_change_stays(ready) -> None:
    name = submit(ready, tags=["a"])
    run = ready.json("PATCH", f"eval-runs/{name}", json={"add_tags": ["b", "a"], "note": "  the first one\n"})
    assert (run["tags"], run["note"], run["pinned"]) == (["a", "b"], "the first one", False)
    run = ready.json("PATCH", f"eval-runs/{name}", json={"remove_tags": ["a", "never there"], "pinned": True})
    assert (run["tags"], run["note"], run["pinned"]) == (["b"], "the first one", True)
    run = ready.json("PATCH", f"eval-runs/{name}", json={"tags": [], "note": ""})
    assert (run["tags"], run["note"], run["pinned"]) == ([], "", True)
    twenty = [f"t{n}" for n in range(20)]
    ready.json("PATCH", f"eval-runs/{name}", json={"add_tags": twenty})
    refused = ready.http.patch(f"/api/cli/eval-runs/{name}", json={"add_tags": ["one-more"]})
    assert (refused.status_code, "at most 20 tags" in refused.text) == (400, True)


def test_a_run_gets_a_name_that_is_free(ready) -> None:
    first, second = submit(ready), submit(ready)
    assert ready.json("PATCH", f"eval-runs/{first}", json={"name": "before-the-prompt"})["name"] == "before-the-prompt"
    assert ready.http.get(f"/api/cli/eval-runs/{first}").status_code == 404
    ready.json("GET", "eval-runs/before-the-prompt")
    taken = ready.http.patch(f"/api/cli/eval-runs/{second}", json={"name": "before-the-prompt"})
    assert (taken.status_code, "already a run" in taken.text) == (409, True)
    assert ready.http.patch(f"/api/cli/eval-runs/{second}", json={"name": "a b"}).status_code == 400
    assert set(names(ready)) == {"before-the-prompt", second}


def test_an_evaluation_and_a_training_run_never_get_one_name_at_once(ready) -> None:
    """No constraint of their table compares them: the second waits until the first is stored."""
    evaluation, training = (ready.json("GET", f"eval-runs/{submit(ready)}")["eval_run"]["id"] for _ in range(2))
    refused: list[Conflict] = []

    def rename_training() -> None:
        try:
            with ready.platform.db.write() as session:
                run = session.get_one(tables.Run, training)
                run.kind = "training"
                lifecycle.mark(session, run, MarkChange(name="same"))
        except Conflict as error:
            refused.append(error)

    other = threading.Thread(target=rename_training)
    with ready.platform.db.write() as session:
        lifecycle.mark(session, session.get_one(tables.Run, evaluation), MarkChange(name="same"))
        session.flush()
        other.start()
        other.join(0.5)  # it is over by then where it does not wait
    other.join(60)
    assert [error.message for error in refused] == ["there is already a run named same"]


def test_marks_are_changed_on_the_page_and_pinned_runs_stand_first(ready) -> None:
    first, second = submit(ready), submit(ready)
    id_ = ready.json("GET", f"eval-runs/{first}")["eval_run"]["id"]
    form = {"name": first, "tags": "nightly, prompt:v3", "note": "<b>bold</b>", "pinned": "true"}
    assert ready.http.post(f"/runs/{id_}/marks", data=form, follow_redirects=False).status_code == 303
    shown = ready.http.get(f"/runs/{id_}").text
    assert '<a class="tag" href="/?tag=prompt%3Av3">prompt:v3</a>' in shown
    assert ("&lt;b&gt;bold" in shown, "<b>bold" in shown) == (True, False)
    listed = ready.http.get("/").text
    assert listed.index(f">{first}</a>") < listed.index(f">{second}</a>")
    assert f">{second}</a>" not in ready.http.get("/?tag=nightly").text
    wrong = ready.http.post(f"/runs/{id_}/marks", data={**form, "tags": "a$b"})
    assert (wrong.status_code, "is not a tag" in wrong.text) == (400, True)


def test_a_run_is_deleted_from_its_page(ready) -> None:
    name = submit(ready)
    id_ = ready.json("GET", f"eval-runs/{name}")["eval_run"]["id"]
    assert f"/runs/{id_}/delete" not in ready.http.get(f"/runs/{id_}").text
    assert ready.http.post(f"/runs/{id_}/delete", data={}).status_code == 409
    ready.json("POST", f"eval-runs/{name}/stop")
    assert f'action="/runs/{id_}/delete"' in ready.http.get(f"/runs/{id_}").text
    assert ready.http.post(f"/runs/{id_}/delete", data={}, follow_redirects=False).status_code == 303
    assert names(ready) == []


def test_a_form_of_another_session_changes_nothing(ready) -> None:
    name = submit(ready)
    id_ = ready.json("GET", f"eval-runs/{name}")["eval_run"]["id"]
    with ready.platform.db.write() as session:
        token = tokens.issue(session, users.ensure_owner(session, "x"), "browser").text
    cookie = {"Cookie": f"{SESSION_COOKIE}={token}"}
    path, sent = f"/runs/{id_}/marks", {"name": name, "tags": "x"}
    assert ready.anonymous.post(path, headers=cookie, data={**sent, "csrf": "guessed"}).status_code == 403
    good = {**sent, "csrf": csrf_of(ready.platform, token)}
    assert ready.anonymous.post(path, headers=cookie, data=good, follow_redirects=False).status_code == 303
