"""`osmosis eval compare` of runs of this machine and of the platform, in every combination."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import httpx
import pytest

from osmosis.client import PlatformClient
from osmosis.engine.journal import Journal
from osmosis.errors import Forbidden
from osmosis.local.viewing.library import LocalLibrary, PlatformEvaluation
from osmosis.metrics.summary import Terms, summarize
from osmosis.platform import tables
from osmosis.platform.runs import rollouts as judgements
from osmosis.records.base import utc_now
from osmosis.records.config.run_config import TrainingConfig
from osmosis.records.run.annotations import Annotation, MarkChange
from osmosis.records.run.plan import EvalPlan, ModelSpec
from osmosis.records.run.rollout import Rollout
from osmosis.records.run.training import plan_training
from osmosis.viewer import routes
from osmosis.viewer.page import Page, QueryParams
from support.command_line import CommandRun
from support.git_workspace import GitWorkspace
from support.platform_app import RunningPlatform, running_platform
from support.platform_data import add_rollouts, add_run, rollout

Run = Callable[..., CommandRun]


ROWS = 24


def rollouts(passed: int) -> list[Rollout]:
    """One attempt at each row, of which the first ones pass."""
    keyed = [rollout(row, 0, 1.0 if row < passed else 0.0) for row in range(ROWS)]
    for one in keyed:
        one.row_key = f"row-{one.row_index}"
    return keyed


def keep_local(cwd: Path, name: str, passed: int) -> None:
    plan = EvalPlan(name=name, agent="agent:run", dataset="d.jsonl", model=ModelSpec.parse("offline/x"))
    journal = Journal(cwd / ".osmosis" / "runs" / name)
    journal.open(plan)
    journal.append_all(rollouts(passed))
    journal.close()


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    """With `base-1` and `trained-1`; what a test adds has names of its own."""
    with running_platform(tmp_path_factory.mktemp("platform") / "data") as running:
        for name, passed in (("base-1", 6), ("trained-1", 20)):
            add_rollouts(running.parts, add_run(running.parts, running.workspace_id, name), rollouts(passed))
        yield running


@pytest.fixture
def run(tmp_path: Path, platform: RunningPlatform) -> Run:
    """The command line, beside local runs `base` and `trained` of the same rollouts."""
    for name, passed in (("base", 6), ("trained", 20)):
        keep_local(tmp_path, name, passed)
    return partial(platform.run, cwd=tmp_path)


@pytest.mark.parametrize(
    ("a", "b"), [("base-1", "trained-1"), ("base", "trained-1"), ("platform:base-1", "trained"), ("base", "trained")]
)
def test_every_combination_says_the_same(run: Run, a: str, b: str) -> None:
    done = run("eval", "compare", a, b)
    assert done.code == 0, done.err
    data = done.json["data"]
    assert (data["verdict"], data["pairs"], data["gained"], data["lost"]) == ("better", ROWS, 14, 0)
    assert data["difference"] == pytest.approx(14 / 24)
    assert data["difference_ci"][0] > 0
    first = data["transcripts"][0]
    assert first["transcript_a"][-1]["content"].endswith("#### 0")
    assert not first["transcript_b"][-1]["content"].endswith("#### 0")


def test_a_plan_is_made_from_runs_of_either_side(run: Run) -> None:
    here = run("eval", "plan", "base", "--difference", "0.2")
    assert here.code == 0, here.err
    assert here.json["data"] == run("eval", "plan", "base-1", "--difference", "0.2").json["data"]
    data = here.json["data"]
    assert (data["rows"], data["attempts"], data["score"], data["effect"]) == (ROWS, 1, "reward", 0.0)
    options = data["options"]
    assert [option["attempts"] for option in options] == [1, 2, 4, 8]
    assert [option["rollouts"] for option in options] == [2 * option["rows"] * option["attempts"] for option in options]
    assert options[0]["left"] == options[0]["rollouts"] - ROWS, "the pilot is half of one run"
    assert options[0]["cost_usd"] == pytest.approx(0.0004 * options[0]["left"])
    both = run("eval", "plan", "base", "trained-1", "--difference", "0.2").json["data"]
    assert both["options"][0]["left"] == both["options"][0]["rollouts"] - 2 * ROWS
    assert 0.3 < data["could_show_twice_the_rows"] < data["could_show"] < 0.7
    wrong = run("eval", "plan", "base", "--score", "length")
    assert (wrong.code, wrong.error["details"]["hint"]) == (1, "--score, one of: reward")


def test_a_regression_ends_with_1(run: Run) -> None:
    done = run("eval", "compare", "trained-1", "base-1", "--fail-on-regression")
    assert (done.code, done.json["data"]["verdict"]) == (1, "worse")


def test_a_name_that_is_nowhere_says_where_it_was_looked_for(run: Run) -> None:
    refused = run("eval", "compare", "base-1", "gone")
    assert refused.code == 1
    assert "nor an evaluation of that name on the platform" in refused.error["message"]
    without = run("eval", "compare", "base", "gone", OSMOSIS_TOKEN="", OSMOSIS_PLATFORM_URL="http://127.0.0.1:9")
    assert "existing: base, trained" in without.error["message"]
    assert run("eval", "compare", "base", "trained", OSMOSIS_PLATFORM_URL="http://127.0.0.1:9").code == 0


def test_local_and_platform_runs_are_exported_side_by_side(run: Run, tmp_path: Path) -> None:
    done = run("view", "trained", "base-1", "--export", "pages")
    assert done.code == 0, done.err
    folder = tmp_path / "pages"
    pages = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.html")}
    assert "platform:base-1" in pages["index.html"]
    compared = [text for name, text in pages.items() if name.startswith("compare/")]
    table = next(text for text in compared if "Compare 2 runs" in text)
    assert "better" in table
    assert "+14 −0" in table
    assert sum("Compare 2 runs" not in text for text in compared) >= 14, "a page for each flip"
    assert "on the platform" in pages["runs/base-1~platform/index.html"]
    assert "What is" in pages["runs/base-1~platform/rollouts/3-0.html"], "the conversation was fetched"


def test_what_view_cannot_find_and_what_is_on_both_sides_is_said(run: Run, tmp_path: Path) -> None:
    gone = run("view", "base", "gone", "--export", "pages")
    assert "nor an evaluation of that name on the platform" in gone.error["message"]
    out = run("view", "platform:base-1", "--export", "pages", OSMOSIS_TOKEN="")
    assert out.error["code"] == "AUTH_REQUIRED"
    keep_local(tmp_path, "trained-1", 3)
    both = run("view", "trained-1", "platform:base-1", "--export", "pages")
    assert both.code == 0, both.err
    assert "the other is platform:trained-1" in both.err
    assert not (tmp_path / "pages" / "runs" / "trained-1~platform").exists()


def test_a_platform_run_that_goes_on_is_followed_and_only_looked_at(platform: RunningPlatform, tmp_path: Path) -> None:
    id_ = add_run(platform.parts, platform.workspace_id, "going-1", "running")
    add_rollouts(platform.parts, id_, rollouts(9)[:3])
    with PlatformClient(platform.url, platform.token, workspace=platform.workspace) as client:
        cache = tmp_path / "cache"
        library = LocalLibrary([], cache, remote=[PlatformEvaluation(client, "going", cache)])
        only = library.only_run() or ""
        assert only == "going-1~platform"

        def shown() -> int:
            view = routes.build_page(
                library, f"runs/{only}/rollouts", QueryParams([("q", "product"), ("by", "rollout")])
            )
            assert isinstance(view, Page)
            found = view.values["found"]
            assert isinstance(found, dict)
            return int(found["total"])

        assert library.run(only).is_indexed(wait=True)
        first = shown()
        add_rollouts(platform.parts, id_, rollouts(9)[3:7])
        library.remote[0].forget()
        assert library.run(only).is_indexed(wait=True)
        assert (first, shown()) == (3, 7)
        assert library.run(only).state().status.value == "running"
        with pytest.raises(Forbidden):
            library.mark(only, MarkChange(note="mine"))
        said = Annotation.model_validate({"row_index": 0, "attempt": 0, "author": "ada", "label": "wrong"})
        with pytest.raises(Forbidden):
            library.annotate(only, said)
        with platform.parts.db.write() as session:
            judgements.add_annotation(session, id_, said, None)
        library.remote[0].forget()
        assert [one.label for one in library.run(only).annotations()] == ["wrong"]
        found = routes.build_page(
            library, f"runs/{only}/rollouts", QueryParams([("label", "wrong"), ("by", "rollout")])
        )
        assert isinstance(found, Page)
        assert found.values["found"]["total"] == 1, "people's labels are searched, wherever they were given"


def test_what_changed_in_the_code_is_shown_where_a_repository_has_both_commits(
    run: Run, platform: RunningPlatform, tmp_path: Path
) -> None:
    checkout = GitWorkspace(tmp_path / "checkout")
    before = checkout.commit()
    checkout.write("rollouts/multiply/main.py", "print('<script>')\n")
    checkout.write("README.md", "About\n")
    after = checkout.commit()
    ids = []
    for name, commit in (("old-code", before), ("new-code", after)):
        id_ = add_run(platform.parts, platform.workspace_id, name, commit_sha=commit)
        add_rollouts(platform.parts, id_, rollouts(4))
        ids.append(("run", id_))

    def page(path: str) -> str:
        answer = httpx.get(f"{platform.url}{path}", params=ids, headers=platform.headers)
        assert answer.status_code == 200, answer.text
        return answer.text

    assert "no repository here has both commits" in page("/compare/code")
    checkout.git("push", "--quiet", platform.git_url, "HEAD:main")
    for text in (page("/compare/code"), exported(run, checkout.root)):
        assert "+print(&#39;&lt;script&gt;&#39;)" in text
        assert "1 file changed elsewhere" in text
    assert f'hx-get="/compare/code?run={ids[0][1]}&amp;run={ids[1][1]}"' in page("/compare")
    elsewhere = exported(run, tmp_path)
    assert "no repository here has both commits" in elsewhere


def exported(run: Run, cwd: Path) -> str:
    """The page of an export in which what changed in the code is shown."""
    folder = cwd / "shared"
    assert run("view", "old-code", "new-code", "--export", str(folder), cwd=cwd).code == 0
    (page,) = folder.glob("compare/code-*.html")
    assert any(page.name in one.read_text() for one in folder.glob("compare/*.html"))
    return page.read_text()


def test_rows_in_quarantine_at_the_commit_decide_nothing_on_the_platform(run: Run, platform: RunningPlatform) -> None:
    made, until = rollouts(12), (utc_now() + timedelta(days=30)).date()
    flaky = [{"key": f"row-{row}", "reason": "the <b>judge</b> wavers", "until": str(until)} for row in range(12, ROWS)]
    old = {"key": "row-1", "reason": "was slow", "until": "2024-01-02"}
    elsewhere = {**flaky[0], "key": "row-2", "dataset": "another"}
    report = summarize(made, Terms(1, 1.0), rows=ROWS).to_dict()
    aside = {"row": [*flaky, old, elsewhere]}
    id_ = add_run(platform.parts, platform.workspace_id, "flaky-1", report=report, quarantine=aside)
    add_rollouts(platform.parts, id_, made)
    done = run("eval", "wait", "flaky-1", "--fail-under", "0.9")
    assert (done.code, done.json["resource"]["quarantine"]["without"]["pass_rate"]) == (0, 1.0), done.out
    assert "12 rows are in quarantine and not counted" in done.json["message"]
    assert run("eval", "wait", "base-1", "--fail-under", "0.9").code == 1, "it has none"

    def page(path: str) -> str:
        return httpx.get(f"{platform.url}{path}", headers=platform.headers).text

    text = page(f"/runs/{id_}")
    assert text.count("12 rows in quarantine left out") >= 2, "beside each figure of the score"
    assert f"row row-12 is in quarantine until {until}: the &lt;b&gt;judge&lt;/b&gt; wavers" in text
    assert "row row-1 was in quarantine until 2024-01-02, and counts again" in text
    assert "row-2 is in quarantine" not in text
    assert "100.0 %" in text.partition('id="quarantine"')[0]
    both = page(f"/compare?run={id_}&run={id_of(platform, 'trained-1')}")
    assert "Rows in quarantine" in both
    assert "row row-23 is in quarantine" in both


def test_a_page_of_training_runs_says_how_many_it_leaves_out(platform: RunningPlatform) -> None:
    names = [f"learns-{number}" for number in range(8)]
    ids = [add_run(platform.parts, platform.workspace_id, name, kind="training") for name in names]
    for chosen, text in ((ids, "2 more are left out: at most 6 are compared at once."), (ids[:6], "")):
        page = httpx.get(f"{platform.url}/compare", params=[("run", id_) for id_ in chosen], headers=platform.headers)
        assert page.status_code == 200
        assert text in page.text
        assert ("left out" in page.text) is bool(text)


def test_rows_that_its_model_was_trained_on_are_no_proof(run: Run, platform: RunningPlatform) -> None:
    """A merged model, by a training run whose checkpoint is of step 2: rows 0 to 17 but for those that validate.

    The checkpoint of step 1 was removed since; it learned from rows 0 to 8, and is better on the others, too."""
    owner = {"workspace_id": platform.workspace_id}
    config = {"experiment": {"rollout": "r", "entrypoint": "m.py", "model_path": "tiny", "dataset": "d"}}
    rows = list(range(ROWS))
    validation = plan_training(TrainingConfig.model_validate(config), rows).validation_rows
    options = {"kind": "training", "config": config, "rows": rows, "model_path": "tiny"}
    learner = add_run(platform.parts, platform.workspace_id, "learner-1", **options)
    steps = [one.model_copy(update={"step": 1 + (one.row_index >= 9) + (one.row_index >= 18)}) for one in rollouts(9)]
    add_rollouts(platform.parts, learner, steps)
    with platform.parts.db.write() as session:
        saved = {"run_id": learner, "status": "ready", "base_model": "tiny", "path": "step-2"}
        session.add(tables.Checkpoint(name="learner-1-step-2", step=2, reward=0.5, **saved))
        merge = tables.Merge(id="m", name="whole", adapter="learner-1-step-2", dtype="auto", status="finished", **owner)
        session.add(merge)
        session.add(tables.BaseModel(id="m", name="whole", status="ready", files=[], size=0, **owner))
        for name in ("tiny", "learner-1"):
            session.add(tables.BaseModel(name=name, status="ready", files=[], size=0, **owner))
    trained = [row for row in range(18) if row not in validation]
    for name, model, seen in (("judged-1", "whole", trained), ("judged-2", "learner-1-step-2", trained),
                              ("judged-5", "learner-1-step-1", [row for row in range(9) if row not in validation]),
                              ("judged-3", "learner-1", []), ("judged-4", "tiny", [])):  # fmt: skip
        stored = add_run(platform.parts, platform.workspace_id, name, model_path=f"osmosis/{model}")
        add_rollouts(platform.parts, stored, rollouts(18))
        data = run("eval", "compare", "base-1", name).json["data"]
        assert (data["difference"], data["trained_rows"]) == (pytest.approx(0.5), len(seen)), model
        verdict = "not shown on unseen rows" if seen == trained else "better"
        assert (data["verdict"], bool(data["unseen"])) == (verdict, bool(seen)), model
        assert not seen or data["unseen"]["rows"] == ROWS - len(seen)
    page = f"/compare?run={id_of(platform, 'base-1')}&run={id_of(platform, 'judged-1')}"
    text = httpx.get(f"{platform.url}{page}", headers=platform.headers).text
    assert f"not shown on unseen rows: {len(trained)} of {ROWS} were trained on" in text
    assert "Difference on unseen rows" in text
    with platform.parts.db.write() as session:
        advanced = {"oversample": 1.5, "max_staleness": 1}
        session.get_one(tables.Run, learner).config = {**config, "advanced": advanced}
    data = run("eval", "compare", "base-1", "judged-5").json["data"]
    assert data["trained_rows"] == len(trained), "step 1 may have used groups that began in step 2"


def id_of(platform: RunningPlatform, name: str) -> str:
    with platform.parts.db.read() as session:
        return session.query(tables.Run).filter_by(name=name).one().id
