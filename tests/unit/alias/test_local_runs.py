"""The classes of generation 0.2 for local runs, as existing code calls them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from osmosis.testing.scripted import ScriptedLLM, call, says
from osmosis_ai.auth.credentials import WorkspaceCredentials
from osmosis_ai.cli_services import RubricEvaluator, load_rubric_suite
from osmosis_ai.cli_services.dataset import load_rubric_records
from osmosis_ai.rollout import OsmosisLLMClient, RolloutAgentLoop, RolloutContext, RolloutResult
from osmosis_ai.rollout.console import Console
from osmosis_ai.rollout.eval.common.dataset import DatasetReader, dataset_row_to_request
from osmosis_ai.rollout.eval.common.errors import DatasetParseError, DatasetValidationError, ProviderError
from osmosis_ai.rollout.eval.common.llm_client import ExternalLLMClient
from osmosis_ai.rollout.eval.common.runner import LocalRolloutRunner
from osmosis_ai.rollout.eval.evaluation.eval_fn import EvalFnError, EvalFnWrapper, load_eval_fns
from osmosis_ai.rollout.eval.evaluation.runner import EvalRunner, pass_at_k
from osmosis_ai.rollout.eval.test_mode.interactive import InteractiveLLMClient, InteractiveRunner
from osmosis_ai.rollout.eval.test_mode.runner import LocalTestRunner
from osmosis_ai.rollout.testing import create_mock_trainer_app

ROWS = [
    {"user_prompt": f"What is {a} * 3?", "system_prompt": "calc", "ground_truth": str(a * 3), "extra": a}
    for a in range(2, 6)
]


class Loop(RolloutAgentLoop):
    name = "one-call"

    def get_tools(self, request: Any) -> list[Any]:
        return []

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        messages = list(ctx.request.messages)
        if ctx.request.metadata.get("extra") == 4:
            await ctx.chat(messages)
            raise RuntimeError("the fourth breaks [/red]")
        if ctx.request.metadata.get("extra") == 5:
            return ctx.error("gave up")
        messages.append((await ctx.chat(messages)).message)
        return ctx.complete(messages)


def client() -> ExternalLLMClient:
    return ExternalLLMClient("offline/calculator")


async def test_runs_and_batches_keep_reasons_and_tokens() -> None:
    async with client() as llm:
        batch = await LocalTestRunner(Loop(), llm).run_batch(ROWS, start_index=10)
    assert (batch.total, batch.passed, batch.failed) == (4, 2, 2)
    assert [one.row_index for one in batch.results] == [10, 11, 12, 13]
    assert "the fourth breaks [/red]" in (batch.results[2].error or "")
    assert batch.results[2].token_usage["total_tokens"] > 0
    assert batch.results[3].error == "gave up"
    assert batch.results[0].result.status == "COMPLETED"


async def test_eval_runner_scores_in_order_and_names_broken_functions() -> None:
    def right(solution_str: str, ground_truth: str, extra_info: dict[str, Any]) -> float:
        return float(ground_truth in solution_str)

    async def broken(messages: list[Any], ground_truth: str, metadata: dict[str, Any]) -> float:
        raise ZeroDivisionError("oh")

    fns = [EvalFnWrapper(right, "right"), EvalFnWrapper(broken, "broken")]
    runner = EvalRunner(Loop(), client(), fns, llm_client_factory=client)
    result = await runner.run_eval(ROWS[:2], n_runs=3, batch_size=4)
    assert (result.total_rows, result.total_runs, result.n_runs) == (2, 6, 3)
    assert [[run.run_index for run in row.runs] for row in result.rows] == [[0, 1, 2], [0, 1, 2]]
    summary = result.eval_summaries["right"]
    assert 0 <= summary.mean <= 1
    assert set(summary.pass_at_k) == {1, 3}
    assert result.eval_summaries["broken"].mean == 0.0
    assert "ZeroDivisionError" in (result.rows[0].runs[0].error or "")
    assert pass_at_k(10, 7, 3) == pytest.approx(0.9917, abs=1e-4)


async def test_what_is_missing_counts_as_zero_in_the_means_of_then() -> None:
    """Two of four rows fail in the agent, one of the others is wrong: 1, 0, missing, missing."""

    def first(solution_str: str, ground_truth: str, extra_info: dict[str, Any]) -> float:
        return float(extra_info["extra"] == 2)

    told: list[tuple[int, int, int]] = []
    runner = EvalRunner(Loop(), client(), [EvalFnWrapper(first, "first")], llm_client_factory=client)
    result = await runner.run_eval(
        ROWS, n_runs=3, start_index=7, batch_size=2, on_progress=lambda k, n, run: told.append((k, n, run.run_index))
    )
    assert [row.row_index for row in result.rows] == [7, 8, 9, 10]
    assert [run.success for row in result.rows for run in row.runs] == [True] * 6 + [False] * 6
    assert result.rows[2].runs[0].scores == {}
    assert result.rows[2].runs[0].tokens > 0
    summary = result.eval_summaries["first"]
    assert (summary.mean, summary.min, summary.max) == (0.25, 0.0, 1.0)
    assert summary.std == pytest.approx(3**0.5 / 4)
    assert summary.pass_at_k == {1: 0.25, 3: 0.25}
    assert [one[:2] for one in told] == [(k, 12) for k in range(1, 13)]


@pytest.mark.parametrize("leave", [SystemExit(2), asyncio.CancelledError()])
async def test_a_loop_that_leaves_is_a_failed_run(leave: BaseException) -> None:
    class Leaves(Loop):
        name = "leaves"

        async def run(self, ctx: RolloutContext) -> RolloutResult:
            raise leave

    async with client() as llm:
        batch = await LocalRolloutRunner(Leaves(), llm).run_batch(ROWS[:2])
    assert (batch.passed, batch.failed) == (0, 2)
    assert all(one.error for one in batch.results)


def test_eval_functions_of_another_shape_are_refused() -> None:
    with pytest.raises(EvalFnError):
        EvalFnWrapper(lambda answer: 1.0, "x")
    with pytest.raises(EvalFnError, match="listed twice"):
        load_eval_fns(["a:b", "a:b"])


def test_reader_insists_on_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in [{**ROWS[0], "Extra": 1}, ROWS[1]]) + "\n")
    reader = DatasetReader(path)
    assert len(reader) == 2
    assert reader.read(limit=1, offset=1) == [ROWS[1]]
    path.write_text(json.dumps({"user_prompt": "q"}))
    with pytest.raises(DatasetValidationError, match=r"Row 0: missing required columns: \['ground_truth'"):
        DatasetReader(path).read()
    assert DatasetReader(path, required=("user_prompt",)).read() == [{"user_prompt": "q"}]
    with pytest.raises(FileNotFoundError):
        DatasetReader(tmp_path / "none.jsonl")
    (tmp_path / "rows.txt").write_text("x")
    with pytest.raises(DatasetParseError):
        DatasetReader(tmp_path / "rows.txt")


@pytest.mark.parametrize("ending", ["jsonl", "json"])
@pytest.mark.parametrize(
    "row",
    [
        *({**ROWS[0], "user_prompt": value} for value in (None, " ", 5, ["x"])),
        {**ROWS[0], "system_prompt": 1},
        {**ROWS[0], "ground_truth": None},
        None,
        [1],
        "text",
    ],
)
def test_rows_without_the_text_they_need_are_validation_errors(tmp_path: Path, row: object, ending: str) -> None:
    path = tmp_path / f"rows.{ending}"
    rows = [ROWS[0], row]
    path.write_text(json.dumps(rows) if ending == "json" else "\n".join(map(json.dumps, rows)))
    with pytest.raises(DatasetValidationError, match="Row 1: "):
        DatasetReader(path).read()


def test_a_file_that_cannot_be_read_is_a_parse_error(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{nope\n")
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    for name in ("rows.jsonl", "rows.parquet"):
        with pytest.raises(DatasetParseError):
            DatasetReader(tmp_path / name).read()


def test_requests_from_rows() -> None:
    request = dataset_row_to_request(ROWS[0], 3, metadata_overrides={"extra": 9})
    assert (request.rollout_id, request.max_tokens_total) == ("local-3", 4096)
    assert [one["role"] for one in request.messages] == ["system", "user"]
    assert request.metadata == {"ground_truth": "6", "row_index": 3, "extra": 9}


async def test_provider_errors_have_a_category() -> None:
    async with ExternalLLMClient("offline/nobody") as llm:
        with pytest.raises(ProviderError) as caught:
            await llm.chat_completions([{"role": "user", "content": "x"}])
    assert caught.value.category == "model_not_found"


async def test_stepping_asks_after_every_answer(capsys: pytest.CaptureFixture[str]) -> None:
    answers = iter(["r 1", "t", "m", "?", "n", "", "0", "q", "9", "q"])
    runner = InteractiveRunner(Loop(), client(), ask=lambda _: next(answers), console=Console())
    await runner.run_interactive_session(ROWS[:2])
    shown = capsys.readouterr().out
    assert "row 1 ended" in shown
    assert "row 0 left" in shown
    assert "n/next/Enter" in shown
    assert "no such row" in shown
    assert next(answers, None) is None


async def test_any_client_with_the_interface_will_do() -> None:
    class Client(ScriptedLLM):
        def set_tools(self, tools: list[Any]) -> None: ...
        def clear_tools(self) -> None: ...
        def reset_metrics(self) -> None: ...

    llm = Client([says("9", call("x", "{}"))])
    done = await LocalRolloutRunner(Loop(), llm).run_single(ROWS[0], 0)
    assert done.success
    assert done.token_usage["num_llm_calls"] == 1
    assert not hasattr(llm, "close"), "the interface has none"
    made = [Client([says("9", call("x", "{}"))]) for _ in range(2)]
    runner = EvalRunner(Loop(), llm, [], llm_client_factory=lambda: made.pop())
    assert (await runner.run_eval(ROWS[:2], batch_size=2)).total_runs == 2
    await InteractiveLLMClient(llm, on_step=lambda step: True).close()


async def test_a_trainers_client_says_what_it_was_given() -> None:
    async with OsmosisLLMClient("http://127.0.0.1:9/", "r1", api_key="k", complete_rollout_retries=0) as llm:
        assert (llm.server_url, llm.rollout_id, llm.api_key) == ("http://127.0.0.1:9", "r1", "k")
        assert (llm.complete_rollout_retries, llm.max_retries) == (0, 3)


def test_the_mock_trainer_answers_with_the_rollouts_id() -> None:
    with TestClient(create_mock_trainer_app()) as trainer:
        body = {"rollout_id": "r1", "messages": [{"role": "user", "content": "hello"}]}
        assert trainer.post("/v1/chat/completions", json=body).json()["id"] == "r1"


def test_evaluator_takes_functions_of_either_kind(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(
        "rubrics:\n  - {id: a, rubric: be kind, score_max: 2, model_info: {provider: offline, model: judge}}\n"
    )
    (tmp_path / "d.jsonl").write_text('{"rubric_id": "a", "solution_str": "hello", "extra_info": {"k": 1}}\n')
    config = load_rubric_suite(tmp_path / "r.yaml").get("a")
    record = load_rubric_records(tmp_path / "d.jsonl", "a")[0]
    assert RubricEvaluator().run(config, record)["score"] == 1.0
    seen: dict[str, Any] = {}

    def own(solution_str: str, ground_truth: str | None, extra_info: dict[str, Any]) -> float:
        seen.update(extra_info)
        return 0.25

    assert RubricEvaluator(own).run(config, record)["score"] == 0.25
    assert (seen["k"], seen["rubric"], seen["score_max"], seen["provider"]) == (1, "be kind", 2, "offline")


def test_credentials_insist_on_a_time_zone() -> None:
    data = {"access_token": "t", "expires_at": "2020-01-01T00:00:00Z", "user": {"id": "u"}}
    one = WorkspaceCredentials.from_dict(data)
    assert one.is_expired()
    assert WorkspaceCredentials.from_dict(one.to_dict()) == one
    with pytest.raises(ValueError, match="time zone"):
        WorkspaceCredentials.from_dict({**data, "expires_at": "2020-01-01T00:00:00"})
