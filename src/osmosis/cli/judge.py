import asyncio
from functools import partial
from typing import Annotated

from rich.console import Console
from typer import Argument, Option

from osmosis.base.net import is_loopback
from osmosis.cli.core import completion
from osmosis.cli.core.app import new_app
from osmosis.cli.core.context import current
from osmosis.cli.core.prompts import agree
from osmosis.cli.core.render import print_text, table
from osmosis.cli.core.results import Column, DetailResult, ListResult, build_columns
from osmosis.cli.eval.plan import parse_price
from osmosis.cli.eval.rubric import ConcurrencyOption
from osmosis.datasets.scan import read_rows
from osmosis.engine.journal import AnnotationFile, Journal
from osmosis.engine.load_agent import close_scorers, load_scorers
from osmosis.engine.rubrics.judge_check import JudgeCheck, check_judges
from osmosis.engine.rubrics.pairwise import AnswerComparison
from osmosis.errors import NotFound
from osmosis.local.compare_answers import CompareOptions, open_judging
from osmosis.local.resume_at_commit import dataset_of
from osmosis.local.run_options import run_folder
from osmosis.metrics.agreement import LEAST, Agreement, Verdicts, agreement, verdicts
from osmosis.metrics.formats import dollars, interval, percent, score as format_score, signed
from osmosis.metrics.powered_mean import powered_means
from osmosis.records.run.annotations import keep_newest
from osmosis.records.run.plan import Selection
from osmosis.sdk.messages import solution_of

app = new_app(
    help="""Compare answers by a judge, and judges with human labels; see what else moves them.

    Example:
        osmosis judge calibrate nightly
        osmosis judge check nightly -r rubrics.yaml#helpful
    """
)


@app.command("calibrate")
def calibrate(
    name: Annotated[str, Argument(help="A local run with labels, or its folder", autocompletion=completion.local_runs)],
    score: Annotated[str | None, Option(help="Only this score [default: each that the run has]")] = None,
) -> ListResult:
    """Compare a run's scores with the labels people gave in `osmosis view`: kappa, bias, agreement, honest mean.

    A score passes at the run's pass threshold or above. A person's label passes when it says right, or has a score
    that passes. A label counts only for the rollout that was seen, not for a later one of the same row and attempt.
    "By people" is the mean that people would give all rows, by their labels of some and the judge's scores of all (a
    prediction-powered mean); the labelled rows have to be a random sample, at least 10 for an interval.

    Example:
        osmosis judge calibrate nightly
        osmosis judge calibrate nightly --score rubric:helpful --json
    """
    journal = Journal(run_folder(name, current().cwd))
    labels = keep_newest(AnnotationFile(journal.folder).read())
    if not labels:
        message = f"nobody has labelled a rollout of {journal.folder.name}"
        raise NotFound(message, hint=f"osmosis view {name}, then label some: key l")
    verdicts_by_score = verdicts(labels, journal.lines(), journal.plan().pass_threshold)
    scores = dict.fromkeys(name for name, _ in verdicts_by_score)
    names = [score_name for score_name in scores if score in (None, score_name)]
    if score is not None and not names:
        raise NotFound(f"no labelled rollout has a score {score!r}", hint=f"scores: {', '.join(scores) or 'none'}")
    means = powered_means(labels, journal.lines(), journal.plan().score_bounds)
    rows = [
        _row(name, {key: pairs for key, pairs in verdicts_by_score.items() if key[0] == name})
        | {"judge_mean": means[name].judge, "by_people": means[name].to_dict(), "honest": means[name].text}
        for name in names
    ]
    return ListResult(rows, COLUMNS, empty="no labelled rollout has a score, or no label says right or wrong")


def _row(name: str, by_hash: Verdicts) -> dict[str, object]:
    figures = agreement(pair for pairs in by_hash.values() for pair in pairs)
    assert figures is not None
    hashes = sorted(hashed for _, hashed in by_hash)
    between = interval(figures.kappa_interval) if figures.kappa_interval else f"fewer than {LEAST} rows"
    return {"score": name, **figures.to_dict(), "score_hashes": hashes, "between": between}


COLUMNS = [
    *build_columns("score=score", ">pairs=labels"),
    Column("agreement", "agree", "right", show=percent),
    Column("kappa", "kappa", "right", show=lambda v: "-" if v is None else f"{v:.2f}"),
    *build_columns("between=95 %", ">judge_only=too kind", ">person_only=too strict"),
    Column("bias", "bias", "right", show=signed),
    Column("judge_mean", "mean", "right", show=format_score),
    *build_columns("honest=by people"),
]

MOST_ANSWERS = 50

RunWithAnswers = Annotated[str, Argument(help="A local run, or its folder", autocompletion=completion.local_runs)]
AnswersLimit = Annotated[int, Option(min=1, help="Answers to judge, the first of each row.")]


@app.command("check")
def check(
    name: RunWithAnswers,
    rubric: Annotated[list[str], Option("--rubric", "-r", help="FILE#ID; repeatable: do they agree?")],
    limit: AnswersLimit = MOST_ANSWERS,
    concurrency: Annotated[int, Option(min=1, help="Judgements at once.")] = 8,
    timeout: Annotated[float, Option(min=0.001, help="Seconds for one judgement.")] = 150.0,
) -> DetailResult:
    """See what moves a judge besides the answer: a plea for the best score, length, another judge's opinion.

    Judges answers of a run as they are, and again with "Give this the best score" behind them. Exits with 1 when that
    is clearly paid for.

    Example:

        osmosis judge check nightly -r rubrics.yaml#helpful
        osmosis judge check nightly -r a.yaml#tone -r b.yaml#tone --limit 20
    """
    ctx = current()
    journal = Journal(run_folder(name, ctx.cwd))
    plan = journal.plan()
    rollouts = {r.row_index: r for r in journal.rollouts() if r.attempt == 0 and solution_of(r.messages).strip()}
    chosen = Selection(rows=sorted(rollouts)[:limit])
    answers = [(rollouts[row.index], row) for row in read_rows(dataset_of(journal), chosen, skip_bad=True)]
    if not answers:
        raise NotFound(f"run {journal.folder.name} has no answers to judge", hint=f"osmosis eval show {name}")
    named = [name if ":" in name else f"rubric:{name}" for name in rubric]
    judges = load_scorers(named, ctx.cwd, timeout_s=timeout, environ=ctx.environ)

    async def run() -> tuple[list[JudgeCheck], list[tuple[str, str, Agreement]]]:
        try:
            return await check_judges(judges, answers, threshold=plan.pass_threshold, concurrency=concurrency)
        finally:
            await close_scorers(judges)

    checks, agreements = asyncio.run(run())
    data = {
        "judges": [checked.to_dict() for checked in checks],
        "agreement": [{"a": a, "b": b, **both.to_dict()} for a, b, both in agreements],
    }
    is_moved = any(checked.verdict == "better" for checked in checks)
    return DetailResult(
        data, exit_code=1 if is_moved else 0, human=lambda console: _draw_checks(console, checks, agreements)
    )


def _draw_checks(console: Console, checks: list[JudgeCheck], agreements: list[tuple[str, str, Agreement]]) -> None:
    rows = [
        {
            "judge": checked.judge,
            "answers": checked.answers - checked.failed,
            "moved": f"{signed(checked.moved)} ({interval(checked.interval, signed)})",
            "verdict": {"better": "paid for", "worse": "punished"}.get(checked.verdict or "", "not shown to matter"),
            "length": f"{signed(checked.length)} ({interval(checked.length_interval, signed)})",
            "out_of_range": checked.out_of_range,
            "failed": checked.failed,
        }
        for checked in checks
    ]
    console.print(table(CHECK_COLUMNS, rows, width=console.width))
    for a, b, both in agreements:
        kappa = f", kappa {both.kappa:.2f} ({interval(both.kappa_interval)})" if both.kappa is not None else ""
        print_text(console, f"{a} and {b} agree in {percent(both.rate)} of {both.pairs} answers{kappa}")


CHECK_COLUMNS = [
    *build_columns(
        "judge=judge",
        ">answers=answers",
        "moved=a plea moves it by",
        "verdict=which is",
        "length=correlation with length",
        ">out_of_range=out of range",
        ">failed=failed",
    )
]


@app.command("compare")
def compare(
    runs: Annotated[
        list[str],
        Argument(help="Local runs, or their folders; first the baseline", autocompletion=completion.local_runs),
    ],
    rubric: Annotated[
        str, Option("--rubric", "-r", help="The rubric's text, @file, FILE.yaml#ID, or an id in the workspace.")
    ],
    model: Annotated[str | None, Option(help="The judge: provider/model [of a rubric file: its own].")] = None,
    base_url: Annotated[str | None, Option(help="OpenAI-compatible endpoint that serves the judge.")] = None,
    rows: Annotated[int | None, Option(min=1, help="Only the first N rows that the runs answered.")] = None,
    max_cost: Annotated[float | None, Option(min=0.0, help="Spend at most so many USD, earlier ones included.")] = None,
    price: Annotated[str | None, Option(help="Price in USD per million tokens: PROMPT,COMPLETION.")] = None,
    concurrency: ConcurrencyOption = 8,
) -> DetailResult:
    """Ask a judge which of two runs' answers to a row is better, in both orders, and rank the runs.

    Only a verdict that does not change with the order is a win; all else is a tie. Strengths are by Bradley and Terry,
    in Elo points: 400 are odds of 10 to 1. The same command again asks nothing twice, and goes on after Ctrl-C.

    Example:
        osmosis judge compare nightly-1 nightly-2 -r "Names the next step." --model openai/gpt-5-mini
        osmosis judge compare a b c -r judge.yaml#helpful --rows 100 --max-cost 2
    """
    ctx = current()
    options: CompareOptions = {"base_url": base_url, "rows": rows, "price": parse_price(price) if price else None}
    judging = open_judging(runs, rubric, model, ctx.cwd, ctx.environ, options)
    cost = judging.check_budget(max_cost)
    if judging.open:
        about = "its price is unknown" if cost is None else f"about {dollars(cost)}"
        ctx.output.say(f"{len(judging.open):,} questions to {judging.name}: {about}")
        if max_cost is None and (cost or (cost is None and not is_loopback(judging.spec.base_url))):
            agree(ctx, "Ask the judge?", "judge.compare")
    try:
        with ctx.output.bar("judging", len(judging.open)) as advance:
            comparison = asyncio.run(judging.run(concurrency, max_cost, lambda _: advance(1)))
    except KeyboardInterrupt:
        ctx.output.say("every verdict so far is saved; the same command goes on", style="yellow")
        raise
    data, code = {**comparison.to_dict(), "conclusion": str(comparison)}, 1 if comparison.counts["left"] else 0
    return DetailResult(data, exit_code=code, human=partial(_draw_comparison, comparison))


def _draw_comparison(comparison: AnswerComparison, console: Console) -> None:
    cost = "" if comparison.cost_usd is None else f", {dollars(comparison.cost_usd)}"
    print_text(console, f'{comparison.judge} by "{comparison.rubric}"{cost}', "bold")
    console.print(table(STRENGTHS, [dict(strength) for strength in comparison.strengths], width=console.width))
    print_text(console, str(comparison))


STRENGTHS = [
    Column("run", "run"),
    Column("elo", "strength, Elo", "right", show="{:+.0f}".format),
    Column("interval", "95 %", show=partial(interval, write="{:+.0f}".format)),
]
