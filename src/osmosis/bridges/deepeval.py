"""Test runs of DeepEval: a file of DEEPEVAL_RESULTS_FOLDER, or `.deepeval/.latest_test_run.json`."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from osmosis.base.jsonable import JsonObject
from osmosis.bridges import logs
from osmosis.errors import ValidationError
from osmosis.records.run.rollout import Category, Failure, Message, Phase, Score, Usage

NAME = "deepeval"


def is_log(path: Path) -> bool:
    return b'"testCases"' in logs.head_of(path)


def read(path: Path) -> list[logs.LoggedRun]:
    document = logs.read_json(path)
    run = document.get("testRunData") or document
    cases = [*(run.get("testCases") or ()), *(run.get("conversationalTestCases") or ())]
    if not cases:
        raise ValidationError(f"{path} has no test cases of DeepEval")
    hyperparameters = run.get("hyperparameters") or {}
    metrics = [metric["name"] for metric in cases[0].get("metricsData") or ()]
    title = str(run.get("identifier") or path.stem.lstrip("."))
    return [
        logs.LoggedRun(
            name=logs.run_name(title),
            agent=f"{NAME}:{run.get('testFile') or title}",
            model=str(hyperparameters.get("model") or "unknown"),
            rollouts=_convert(cases),
            scores=list(dict.fromkeys([*metrics, "passed"])),
            facts={"hyperparameters": hyperparameters} if hyperparameters else {},
        )
    ]


def _convert(cases: Sequence[JsonObject]) -> Iterator[logs.LoggedRollout]:
    for case in sorted(cases, key=lambda case: case.get("order") or 0):
        prompt, target = case.get("input"), case.get("expectedOutput") or case.get("expectedOutcome")
        id = logs.id_of(prompt or case.get("scenario"), target, case.get("context"))
        messages: list[Message] = logs.conversation(prompt, case.get("actualOutput"))
        if prompt is None:
            messages = [{"role": turn["role"], "content": turn.get("content")} for turn in case.get("turns") or ()]
        scores = {metric["name"]: _score(metric) for metric in case.get("metricsData") or ()}
        if scores and case.get("success") is not None:
            scores["passed"] = Score(bool(case["success"]), name="passed")
        metadata = {"name": case.get("name"), "context": case.get("context")}
        metadata["expected_tools"] = case.get("expectedTools")
        info = {"retrieval_context": case.get("retrievalContext"), "tools_called": case.get("toolsCalled")}
        yield logs.logged(
            logs.row_of(id, prompt or case.get("scenario") or "", target, logs.present(metadata)),
            messages,
            scores,
            usage=Usage(cost_usd=case.get("tokenCost")),
            num_tool_calls=len(case.get("toolsCalled") or ()),
            duration_ms=1000 * float(case.get("completionTime") or 0.0),
            info=logs.present(info),
        )


def _score(metric: JsonObject) -> Score:
    name = metric["name"]
    if metric.get("error") or metric.get("score") is None:
        message = str(metric.get("error") or f"DeepEval stored no value for {name!r}")
        return Score(name=name, failure=Failure(phase=Phase.SCORE, category=Category.SCORE_ERROR, message=message))
    judge = Usage(cost_usd=metric["evaluationCost"]) if metric.get("evaluationCost") else None
    return Score(metric["score"], metric.get("reason"), {"threshold": metric.get("threshold")}, name=name, usage=judge)
