"""Training runs over the wire: what is accepted, what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sqlalchemy as sa

from osmosis.datasets.row_file import read_row_file
from osmosis.platform import tables
from osmosis.platform.models.service import folder_of
from osmosis.platform.runs import lifecycle, rollouts
from osmosis.platform.scheduling import job_files, queue
from osmosis.platform.training import service
from osmosis.records.config.run_config import TrainingConfig
from osmosis.records.run.job import JobResult, MetricPoint
from osmosis.records.run.rollout import Rollout, RolloutStatus, Score
from osmosis.records.run.rows import Shard
from osmosis.records.run.status import RunStatus
from support.platform_data import a_worker

EXPERIMENT = {"rollout": "multiply", "entrypoint": "main.py", "model_path": "Qwen/Qwen3-0.6B", "dataset": "sums"}


def submit(site, expect: int = 200, **tables_: Any) -> dict[str, Any]:
    return site.json("POST", "training-runs", expect=expect, json={"experiment_config": EXPERIMENT, **tables_})


def test_a_training_run_is_accepted_with_all_its_rows(ready) -> None:
    sent = {"training_config": {"rollout_batch_size": 4}, "checkpoints_config": {"keep": 2}}
    answer = submit(ready, **sent, advanced_config={"lora_rank": 8})
    assert (answer["name"], answer["status"], answer["sampled_rows"]) == ("multiply-1", "pending", 40)
    stored = TrainingConfig.model_validate(ready.row(tables.Run, answer["id"]).config)
    assert (stored.training.rollout_batch_size, stored.checkpoints.keep, stored.advanced.lora_rank) == (4, 2, 8)
    assert [row["name"] for row in ready.json("GET", "training-runs")["training_runs"]] == ["multiply-1"]


def test_what_a_training_config_must_not_say_is_refused_by_its_key(shared) -> None:
    refused = submit(shared, expect=400, training_config={"lr": "x"}, advanced_config={"lora_rnk": 3})
    found = {issue["key"]: issue for issue in refused["issues"]}
    assert set(found) == {"training.lr", "advanced.lora_rnk"}
    assert found["advanced.lora_rnk"]["key_correction"] == "advanced.lora_rank"
    shared.json("GET", "training-runs/nowhere", expect=404)


def evaluate(site, rewards: dict[int, list[float]], model: str = "offline/calculator") -> str:
    """An evaluation of the same rollout and dataset, with these rewards by row."""
    body = {"experiment_config": {**EXPERIMENT, "model_path": model}, "evaluation_config": {"limit": 4}}
    run = site.json("POST", "eval-runs", json=body)
    made = [
        Rollout(
            rollout_id=f"r{row}-{attempt}", row_index=row, row_key=f"k{row}", attempt=attempt,
            status=RolloutStatus.SUCCESS, scores={"reward": Score(name="reward", value=reward)}, duration_ms=2000,
        )
        for row, group in rewards.items() for attempt, reward in enumerate(group)
    ]  # fmt: skip
    with site.platform.db.write() as session:
        rollouts.store(session, run["id"], made)
    return str(run["name"])


def test_what_a_config_comes_to_is_said_before_it_is_submitted(ready) -> None:
    body = {"experiment_config": EXPERIMENT, "training_config": {"rollout_batch_size": 4}}
    found = ready.json("POST", "training-runs/check", json=body)
    assert (found["steps"], found["training_rows"], found["rollouts_per_step"]) == (9, 36, 32)
    assert [finding["code"] for finding in found["findings"]] == ["no-eval"]
    good = evaluate(ready, {row: [0.0, 1.0] for row in range(4)})
    found = ready.json("POST", "training-runs/check", json=body)
    assert (found["eval_run"], found["no_signal"], found["p95_s"]) == (good, 0.0, 2.0)
    assert found["findings"] == [{**found["findings"][0], "code": "at-once"}]
    evaluate(ready, {row: [0.0] * 8 for row in range(100)})
    assert ready.json("POST", "training-runs/check", json=body)["findings"][0]["severity"] == "error"
    named = ready.json("POST", f"training-runs/check?eval_run={good}", json=body)
    assert named["eval_run"] == good
    of_base = evaluate(ready, {0: [0.0, 1.0]}, model=EXPERIMENT["model_path"])
    evaluate(ready, {0: [0.0, 1.0]})
    assert ready.json("POST", "training-runs/check", json=body)["eval_run"] == of_base
    assert ready.json("GET", "training-runs")["training_runs"] == []


def test_a_dataset_that_does_not_fill_a_step_is_refused(shared) -> None:
    refused = submit(shared, expect=400, training_config={"rollout_batch_size": 64})
    assert refused["issues"][0]["key"] == "training.rollout_batch_size"
    assert "36 rows do not fill one step" in refused["message"]


def test_defaults_adapt_to_a_dataset_of_four_rows(ready) -> None:
    content = b"".join(b'{"user_prompt": "%d", "ground_truth": "1"}\n' % n for n in range(4))
    ready.upload("four", content)
    experiment = {**EXPERIMENT, "dataset": "four"}
    found = ready.json("POST", "training-runs/check", json={"experiment_config": experiment})
    assert (found["steps"], found["training_rows"], found["rollouts_per_step"]) == (1, 4, 32)
    assert "all 4 rows" in found["findings"][0]["what"]
    run = ready.json("POST", "training-runs", json={"experiment_config": experiment})
    stored = ready.json("GET", f"training-runs/{run['name']}")["config"]
    assert stored["training"]["rollout_batch_size"] == 4


@pytest.mark.parametrize(("typed", "lengths"), [({}, (512, 512)), ({"max_prompt_length": 700}, (700, 8192))])
def test_default_lengths_adapt_to_what_the_base_model_can_read(ready, typed: Any, lengths: tuple[int, int]) -> None:
    with ready.platform.db.write() as session:
        workspace = session.scalars(sa.select(tables.Workspace)).first()
        small = tables.BaseModel(name="small", workspace_id=workspace.id, status="ready", context_length=1024, files=[])
        session.add(small)
        session.flush()
        folder_of(ready.platform.settings, small.id).mkdir(parents=True)
    body = {"experiment_config": {**EXPERIMENT, "model_path": "small"}}
    run = ready.json("POST", "training-runs", json={**body, "training_config": {"rollout_batch_size": 4, **typed}})
    stored = ready.json("GET", f"training-runs/{run['name']}")["config"]["training"]
    assert (stored["max_prompt_length"], stored["max_response_length"]) == lengths
    said = [line["message"] for line in ready.json("GET", f"training-runs/{run['name']}/logs")["logs"]]
    assert f"prompts and answers of at most {lengths[0]} and {lengths[1]} tokens, 4 prompts a step" in said


def test_a_run_goes_on_or_starts_once_more(ready) -> None:
    run = submit(ready, training_config={"rollout_batch_size": 4})
    assert "already" in ready.json("POST", "training-runs/multiply-1/resume", expect=409, json={})["message"]
    with ready.platform.db.write() as session:
        row = queue.claim(session, a_worker(session), 60).run
        point = MetricPoint(key="rollout/raw_reward", step=3, value=0.25)
        service.store(session, row.id, [point])
        lifecycle.end(session, row, JobResult(status=RunStatus.FAILED), "killed")
    assert ready.json("GET", "training-runs")["training_runs"][0]["reward"] == 0.25
    resumed = ready.json("POST", "training-runs/multiply-1/resume", json={})
    assert (resumed["id"], resumed["status"]) == (run["id"], "pending")
    assert ready.json("GET", "training-runs/multiply-1/metrics")["overview"]["latest_step"] == 3
    again = ready.json("POST", "training-runs/multiply-1/retry", json={})
    assert (again["name"], again["status"], again["sampled_rows"]) == ("multiply-2", "pending", 40)
    first, second = (ready.json("GET", f"training-runs/multiply-{number}") for number in (1, 2))
    assert (first["config"], first["commit_sha"]) == (second["config"], second["commit_sha"])
    with ready.platform.db.write() as session:
        row = queue.claim(session, a_worker(session), 60).run
        lifecycle.end(session, row, JobResult(status=RunStatus.FINISHED), "done")
    assert "is complete" in ready.json("POST", "training-runs/multiply-1/resume", expect=409, json={})["message"]


IMITATES = {"training_config": {"rollout_batch_size": 4}}


def over(site, name: str) -> None:
    """A run that is over, whatever it was doing."""
    with site.platform.db.write() as session:
        run = session.scalars(sa.select(tables.Run).where(tables.Run.name == name, tables.Run.kind == "eval")).one()
        lifecycle.end(session, run, JobResult(status=RunStatus.STOPPED), "test")


def test_what_a_supervised_run_learns_from_is_checked(ready) -> None:
    def refused(**advanced: Any) -> dict[str, Any]:
        sent = {"method": "sft", "from_run": "multiply-1", **advanced}
        issue: dict[str, Any] = submit(ready, expect=400, **IMITATES, advanced_config=sent)["issues"][0]
        assert issue["key"] == "advanced.from_run"
        return issue

    assert "there is no run named 'nowhere'" in refused(from_run="nowhere")["message"]
    evaluate(ready, {row: [1.0, 0.5] for row in range(4)})
    assert "run 'multiply-1' is pending" in refused()["message"]
    over(ready, "multiply-1")
    sent = {"method": "sft", "from_run": "multiply-1", "min_score": 0.25}
    submit(ready, **IMITATES, advanced_config=sent)
    few = refused(min_score=1.5)
    assert few["message"] == "run 'multiply-1' has 0 rollouts with a score of at least 1.5, and one step takes 4"
    body = {"experiment_config": EXPERIMENT, **IMITATES, "advanced_config": {"method": "sft", "from_run": "multiply-1"}}
    found = ready.json("POST", "training-runs/check", json=body)
    assert (found["eval_run"], found["examples"], found["steps"], found["rollouts_per_step"]) == ("multiply-1", 4, 1, 4)
    assert found["findings"] == []


def test_preferences_are_pairs_of_the_best_and_the_worst_rollouts_of_a_row(ready) -> None:
    evaluate(ready, {0: [0.2, 1.0, 0.9, 0.0, 0.1], 1: [1.0, 1.0], 2: [0.0, 0.5], 3: [0.0, 1.0]})
    over(ready, "multiply-1")
    dpo = {"method": "dpo", "from_run": "multiply-1", "pairs_per_row": 2}
    refused = submit(ready, expect=400, **IMITATES, advanced_config={**dpo, "pairs_per_row": 1})["issues"][0]["message"]
    assert "has 2 pairs of a worse rollout and one with a score of at least 1, and one step takes 4" in refused
    config = TrainingConfig.model_validate({"experiment": EXPERIMENT, "advanced": {**dpo, "min_score": 0.9}})
    with ready.platform.db.read() as session:
        run = session.scalars(sa.select(tables.Run).where(tables.Run.name == "multiply-1")).one()
        query = sa.select(tables.Rollout.id, tables.Rollout.row_index, tables.Rollout.reward)
        scores = {number: (row, reward) for number, row, reward in session.execute(query)}
        pairs = [[scores[number] for number in pair] for pair in service._pair(session, run, config)]
        examples = list(service.list_examples(session, run, config, after=1, limit=5))
    assert sorted(pairs) == [[(0, 0.9), (0, 0.1)], [(0, 1.0), (0, 0.0)], [(3, 1.0), (3, 0.0)]]
    assert [example.place for example in examples] == [2, 3]
    assert all(example.rejected is not None for example in examples)


def test_an_evaluation_and_a_training_run_of_one_name_are_told_apart(ready) -> None:
    evaluate(ready, {row: [1.0, 0.5] for row in range(4)})
    over(ready, "multiply-1")

    def learns_from(name: str) -> str:
        sent = submit(ready, **IMITATES, advanced_config={"method": "sft", "from_run": name})
        return str(ready.row(tables.Run, sent["id"]).config["advanced"]["from_run"])

    assert learns_from("multiply-1") == "eval/multiply-1"
    taken = submit(
        ready, expect=409, name="multiply-1", **IMITATES, advanced_config={"method": "sft", "from_run": "multiply-1"}
    )
    assert taken["message"] == "there is already a run named multiply-1"
    ready.json("PATCH", "training-runs/multiply-2", expect=409, json={"name": "multiply-1"})
    with ready.platform.db.write() as session:  # as runs of earlier versions could be
        session.scalars(sa.select(tables.Run).where(tables.Run.name == "multiply-2")).one().name = "multiply-1"
    assert learns_from("multiply-1") == "eval/multiply-1", "what was meant before goes on being meant"
    body = {"method": "sft", "from_run": "training/multiply-1"}
    issue = submit(ready, expect=400, **IMITATES, advanced_config=body)["issues"][0]
    assert issue["message"] == "run 'training/multiply-1' is pending"
    with ready.platform.db.write() as session:
        run = session.scalars(sa.select(tables.Run).where(tables.Run.kind == "training")).first()
        assert run is not None
        lifecycle.end(session, run, JobResult(status=RunStatus.STOPPED), "test")
    issue = submit(ready, expect=400, **IMITATES, advanced_config=body)["issues"][0]
    assert "has 0 rollouts with a score" in issue["message"]


def test_a_job_gets_the_examples_of_its_own_config_and_no_others(ready) -> None:
    tool = {"type": "function", "function": {"name": "add"}}
    evaluate(ready, {row: [1.0, 0.5] for row in range(4)})
    name = str(evaluate(ready, {row: [0.0] for row in range(4)}))
    with ready.platform.db.write() as session:
        run = session.scalars(sa.select(tables.Run).where(tables.Run.name == "multiply-1")).one()
        said = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]
        score = {"reward": Score(name="reward", value=1.0)}
        more = Rollout(
            rollout_id="r", row_index=9, attempt=0, status=RolloutStatus.SUCCESS, scores=score, messages=said,
            tools=[tool],
        )  # fmt: skip
        failed = more.model_copy(update={"row_index": 10, "status": RolloutStatus.FAILED})
        rollouts.store(session, run.id, [more, failed])
    for one in ("multiply-1", name):
        over(ready, one)
    sent = submit(ready, **IMITATES, advanced_config={"method": "sft", "from_run": "multiply-1"})
    with ready.platform.db.write() as session:
        claimed = queue.claim(session, a_worker(session), 60)
        headers = {"Authorization": f"Bearer {claimed.token}"}

    def page(run_id: str, query: str) -> Any:
        return ready.http.get(f"/api/jobs/{run_id}/examples?{query}", headers=headers)

    lines = [json.loads(line) for line in page(sent["id"], "limit=3").text.splitlines()]
    assert len(lines) == 3
    rest = [json.loads(line) for line in page(sent["id"], f"after={lines[-1]['place']}").text.splitlines()]
    assert [(one["messages"], one["tools"]) for one in rest[1:]] == [(said, [tool])]
    assert len(lines + rest) == 5
    assert page(sent["id"], f"after={rest[-1]['place']}").text == ""
    assert page(sent["id"], "limit=100000").status_code in (400, 422)
    assert page("another", "").status_code == 404
    with ready.platform.db.read() as session:
        learner = session.get_one(tables.Run, sent["id"])
        workspace = session.get_one(tables.Workspace, learner.workspace_id)
        keys = service.list_row_keys(session, workspace, TrainingConfig.model_validate(learner.config))
    assert keys == {"k0", "k1", "k2", "k3", "@9"}, "rows of the examples, for `metrics.compare`"


def test_the_environments_of_a_mixture_have_rows_of_their_own(ready) -> None:
    content = b"".join(b'{"user_prompt": "%d", "ground_truth": "1", "id": "%d"}\n' % (n, n) for n in range(10))
    ready.upload("ten", content)
    few = {"rollout": "multiply", "entrypoint": "main.py", "dataset": "ten", "name": "few"}
    body = {
        "experiment_config": {**EXPERIMENT, "weight": 3.0}, "mix": [few], "training_config": {"rollout_batch_size": 4},
        "advanced_config": {"test_rows": 2},
    }  # fmt: skip
    evaluate(ready, {row: [0.0, 1.0] for row in range(4)})
    check = ready.json("POST", "training-runs/check", json=body)
    shown = {part["name"]: (part["share"], part["rows"], part["validation_rows"]) for part in check["environments"]}
    assert shown == {"multiply": (0.75, 34, 4), "few": (0.25, 7, 1)}
    assert (check["steps"], check["training_rows"]) == (41 // 4, 41)
    assert [each["what"].partition(":")[0] for each in check["findings"] if each["code"] == "no-eval"] == ["few"]
    run = ready.json("POST", "training-runs", json=body)
    assert run["sampled_rows"] == 50
    platform = ready.platform
    with platform.db.read() as session:
        sources = job_files.load_sources(session, platform.settings, run["id"])
        plan = service.plan_run(session.get_one(tables.Run, run["id"]))
    rows = list(read_row_file(job_files.make_row_file(platform, sources, Shard())))
    assert [row.index for row in rows] == list(range(50))
    assert [row.key for row in rows[40:]] == [f"few/{n}" for n in range(10)]
    assert {str(row.key).partition("/")[0] for row in rows[:40]} == {"multiply"}
    ready.json("DELETE", "datasets/ten", expect=409)
    held_out = {
        "experiment_config": {**EXPERIMENT, "dataset": "ten"},
        "evaluation_config": {"held_out_of": run["name"]},
    }
    evaluation = ready.json("POST", "eval-runs", json=held_out)
    with platform.db.read() as session:
        rows_of_evaluation = session.get_one(tables.Run, evaluation["id"]).rows
    assert [row + 40 for row in rows_of_evaluation] == plan.environments[1].test_rows


def test_what_is_wrong_in_a_mixture_is_named_by_its_key(shared) -> None:
    mix = [{"rollout": "multiply", "entrypoint": "nothing.py", "dataset": "none", "name": "few"}]
    refused = submit(shared, expect=400, mix=mix)
    assert {issue["key"] for issue in refused["issues"]} == {"mix.0.dataset", "mix.0.entrypoint"}
    refused = submit(shared, expect=400, mix=[{**mix[0], "name": "multiply", "weight": -1.0, "sealed": "x"}])
    assert {issue["key"] for issue in refused["issues"]} == {"mix.0.name", "mix.0.weight", "mix.0.sealed"}


def test_a_step_needs_rows_of_each_environment(ready) -> None:
    ready.upload("five", b"".join(b'{"user_prompt": "%d", "ground_truth": "1"}\n' % n for n in range(5)))
    mix = [{"rollout": "multiply", "entrypoint": "main.py", "dataset": "five", "name": "few"}]
    refused = submit(ready, expect=400, mix=mix, training_config={"rollout_batch_size": 12})
    assert "6 of them are of few, which has 5" in refused["message"]
    run = submit(ready, mix=mix)
    assert ready.json("GET", f"training-runs/{run['name']}")["config"]["training"]["rollout_batch_size"] == 10
