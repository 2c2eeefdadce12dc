"""`RubricEvaluator` of generation 0.2: one record judged by one rubric, by any function that can."""

from __future__ import annotations

from collections.abc import Callable

from osmosis.base.json_types import JsonObject
from osmosis.engine.rubrics.conversations import RubricRecord
from osmosis.engine.rubrics.rubric_files import RubricConfig
from osmosis.engine.rubrics.rubric_run import ask_function
from osmosis.sdk.evaluate_rubric import background, evaluate_rubric


class RubricEvaluator:
    """`RubricEvaluator().run(config, record)`.

    A function with a `rubric` or `model_info` parameter or `**kwargs` is called like `evaluate_rubric`, any other
    as `(solution_str, ground_truth, extra_info)`.
    """

    def __init__(self, evaluate_fn: Callable[..., object] = evaluate_rubric) -> None:
        self._function = evaluate_fn

    def run(self, config: RubricConfig, record: RubricRecord) -> JsonObject:
        """`score`, `explanation` and `raw`; raises what the function raises."""
        score, explanation, raw = background.run(ask_function(config, record, self._function))
        return {"score": score, "explanation": explanation, "raw": raw}
