"""Rubrics as score functions: one judge, asked about each rollout's last answer, with its reason kept.

The judge's tokens are counted apart from the agent's. A judge that fails leaves a failure, never a score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from osmosis.engine.clock import Deadline
from osmosis.engine.score_result import Range, run_score
from osmosis.errors import LoadError, OsmosisError
from osmosis.records.dataset import Row
from osmosis.records.rollout import Rollout, Score
from osmosis.sdk.judge import Judge, make_question
from osmosis.sdk.messages import solution_of

from .rubric_files import RubricConfig, load_rubric_suite

PREFIX = "rubric:"


class RubricScorer:
    """One rubric of a rubric file."""

    def __init__(self, name: str, config: RubricConfig, judge: Judge, *, timeout_s: float | None = None) -> None:
        self.name = name
        self.config = config
        self.timeout_s = timeout_s
        self.bounds = _bounds(config)
        self._judge = judge

    @classmethod
    def load(
        cls, path: str, base_dir: Path, *, timeout_s: float | None = None, environ: Mapping[str, str] | None = None
    ) -> RubricScorer:
        """From `rubric:file.yaml#id`; without `#id` the file must hold one rubric. The key is looked for at once."""
        file, _, rubric_id = path.removeprefix(PREFIX).partition("#")
        suite = load_rubric_suite(base_dir / file)
        if not rubric_id:
            if len(suite.available_ids()) != 1:
                known = ", ".join(suite.available_ids())
                raise LoadError(
                    f"{file} holds several rubrics: {known}", hint=f"name one: {file}#{known.split(', ')[0]}"
                )
            rubric_id = suite.available_ids()[0]
        config = suite.get(rubric_id)
        try:
            judge = Judge(config.judge_info(), environ=environ)
        except OsmosisError:
            raise
        except (TypeError, ValueError) as error:
            raise LoadError(f"{file}#{rubric_id}: {error}") from error
        return cls(path, config, judge, timeout_s=timeout_s)

    async def score(self, rollout: Rollout, row: Row) -> Sequence[Score]:
        async def ask() -> Score:
            config = self.config
            question = make_question(
                config.rubric,
                solution_of(rollout.messages),
                config.judge_info(),
                ground_truth=config.ground_truth or row.ground_truth,
                original_input=config.original_input or row.data.get("user_prompt"),
                bounds=(config.score_min, config.score_max),
            )
            with Deadline(self.timeout_s):
                verdict = await self._judge.ask(question)
            return Score(
                name=self.name,
                value=verdict.score,
                reason=verdict.explanation,
                usage=verdict.usage,
                duration_ms=verdict.duration_ms,
            )

        return await run_score(self.name, ask, self.timeout_s)

    async def close(self) -> None:
        await self._judge.close()


def _bounds(config: RubricConfig) -> Range:
    """What the judge may give: 0 to 1 where the file does not say."""
    low = 0.0 if config.score_min is None else config.score_min
    return low, 1.0 if config.score_max is None else config.score_max
