"""Answers of stored runs, judged in pairs; the verdicts are in `.osmosis/preferences.jsonl` of the workspace."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from typing_extensions import TypedDict, Unpack

from osmosis.datasets.scan import read_rows
from osmosis.engine.journal import Journal
from osmosis.engine.rubrics import pairwise
from osmosis.engine.rubrics.pairwise import AnswerComparison
from osmosis.engine.rubrics.rubric_files import resolve_rubric
from osmosis.errors import UsageError, ValidationError
from osmosis.local.evaluate import block_on
from osmosis.local.resume_at_commit import dataset_of
from osmosis.local.run import Run
from osmosis.local.run_options import run_folder, runs_folder
from osmosis.sdk.judge import Judge
from osmosis.sdk.judge_model import info_of


class CompareOptions(TypedDict, total=False):
    base_url: str | None  # OpenAI-compatible endpoint of the judge, up to `/v1`
    api_key: str
    price: tuple[float, float] | None  # US dollars per million prompt and completion tokens, where no table has them
    rows: int | None  # only so many rows, the first ones
    max_cost: float  # US dollars, those of earlier verdicts included
    concurrency: int


Runs = Sequence["str | os.PathLike[str] | Run"]


def open_judging(
    runs: Runs, rubric: str, model: str | None, cwd: Path, environ: Mapping[str, str], options: CompareOptions
) -> pairwise.PairJudging:
    workspace = runs_folder(cwd).parent
    config = resolve_rubric(rubric, cwd, workspace.parent)
    info = config.judge_info()
    if model:
        info = {**info_of(model, options.get("base_url")), "system_prompt": info.get("system_prompt")}
    elif not info:
        raise UsageError("a rubric that is a text needs a judge", hint="--model openai/gpt-5-mini")
    info |= {key: options[key] for key in ("api_key", "price") if options.get(key)}
    judge = Judge(info, environ=environ)
    folders = [run.folder if isinstance(run, Run) else run_folder(os.fspath(run), cwd) for run in runs]
    if len({folder.resolve() for folder in folders}) < max(2, len(folders)):
        raise UsageError("a comparison needs two different runs", hint="osmosis eval list")
    journals = [Journal(folder) for folder in folders]
    answers, dataset = pairwise.pair_answers(journals, options.get("rows")), dataset_of(journals[0])
    rows = read_rows(dataset, skip_bad=True) if dataset.is_file() else ()
    references = {row.content_hash or "": row.ground_truth for row in rows if row.ground_truth}
    return pairwise.PairJudging(answers, judge, config, workspace / pairwise.NAME, references)


def compare_answers(runs: Runs, rubric: str, model: str = "", **options: Unpack[CompareOptions]) -> AnswerComparison:
    """Ask a judge which run's answers are better by a rubric, as `osmosis judge compare` does; the first is the
    baseline. `rubric` is a text, `@file`, `FILE.yaml#ID` or an id in the workspace. Blocks as `evaluate` does."""
    return block_on(lambda: compare_answers_async(runs, rubric, model, **options))


async def compare_answers_async(
    runs: Runs, rubric: str, model: str = "", **options: Unpack[CompareOptions]
) -> AnswerComparison:
    """Run `compare_answers` on the running event loop."""
    if unknown := options.keys() - CompareOptions.__annotations__:
        raise TypeError(f"compare_answers() got an unexpected keyword argument {min(unknown)!r}")
    judging = open_judging(runs, rubric, model, Path.cwd(), os.environ, options)
    return await judging.run(options.get("concurrency", 8), options.get("max_cost"))


def stored_comparisons(folders: Sequence[Path]) -> Iterator[AnswerComparison]:
    """Yield what the verdicts in the workspace of these runs say of them, for each judge and rubric."""
    studies: dict[str, list[pairwise.StoredVerdict]] = {}
    for verdict in pairwise.read_verdicts(folders[0].parent.parent / pairwise.NAME):
        studies.setdefault(verdict.study, []).append(verdict)
    with suppress(ValidationError):
        answers = pairwise.pair_answers([Journal(folder) for folder in folders] if studies else [])
        for stored in studies.values():
            if (comparison := pairwise.compare_verdicts(answers, stored)).counts["judged"]:
                yield comparison
