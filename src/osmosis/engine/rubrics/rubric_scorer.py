"""Rubrics as score functions: one judge, asked about each rollout's last answer, with its reason kept."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from osmosis.engine.deadline import Deadline
from osmosis.engine.rubrics.rubric_files import RubricConfig, load_rubric_suite
from osmosis.engine.scoring import Range, run_score
from osmosis.errors import LoadError, OsmosisError
from osmosis.records.run.rollout import Rollout, Score
from osmosis.records.run.rows import Row
from osmosis.sdk.judge import Judge, make_question
from osmosis.sdk.messages import solution_of

PREFIX = "rubric:"


class RubricScorer:
    def __init__(self, name: str, config: RubricConfig, judge: Judge, *, timeout_s: float | None = None) -> None:
        self.name = name
        self.config = config
        self.timeout_s = timeout_s
        low, high = config.score_min, config.score_max
        self.bounds: Range = (0.0 if low is None else low, 1.0 if high is None else high)
        self._judge = judge

    @classmethod
    def load(
        cls, path: str, base_dir: Path, *, timeout_s: float | None = None, environ: Mapping[str, str] | None = None
    ) -> "RubricScorer":
        """Load `rubric:file.yaml#id`; without `#id` the file must hold one rubric. The key is looked up at once."""
        file, _, rubric_id = path.removeprefix(PREFIX).partition("#")
        suite = load_rubric_suite(base_dir / file)
        if not rubric_id:
            if len(suite.available_ids()) != 1:
                ids = ", ".join(suite.available_ids())
                raise LoadError(f"{file} holds several rubrics: {ids}", hint=f"name one: {file}#{ids.split(', ')[0]}")
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
            verdict = await Deadline(self.timeout_s).run(self._judge.ask(question), self.name)
            return Score(
                name=self.name,
                value=verdict.score,
                reason=verdict.explanation,
                usage=verdict.usage,
                duration_ms=verdict.duration_ms,
                replied=verdict.replied,
            )

        return await run_score(self.name, ask, self.timeout_s)

    async def close(self) -> None:
        await self._judge.close()
