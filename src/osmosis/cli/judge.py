"""`osmosis judge calibrate RUN`: how far the scores of a local run agree with what people said of its rollouts."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis.engine.journal import Journal
from osmosis.errors import NotFound
from osmosis.local.request import run_folder
from osmosis.local.viewing.annotation_file import AnnotationFile
from osmosis.metrics.agreement import LEAST, agreement
from osmosis.metrics.calibration import Verdicts, verdicts
from osmosis.metrics.formats import interval, percent, signed
from osmosis.records.annotation import newest

from .context import current
from .results import Column, ListResult

app = typer.Typer(
    help="""Compare judges with human labels.

    Example:
        osmosis judge calibrate nightly
    """,
    no_args_is_help=True,
)


@app.callback()
def _group() -> None:
    """Keeps `calibrate` a command of its own."""


@app.command("calibrate")
def calibrate(
    name: Annotated[str, typer.Argument(help="Name of a local run with labels, or its folder")],
    score: Annotated[str | None, typer.Option(help="Only this score [default: each that the run has]")] = None,
) -> ListResult:
    """Compare a run's scores with the labels people gave in `osmosis view`: kappa, bias, agreement by score.

    A score passes at the run's pass threshold or above. A person's label passes when it says right, or has a score
    that passes. A label counts only for the rollout that was seen, not for a later one of the same row and attempt.

    Example:

        osmosis judge calibrate nightly
        osmosis judge calibrate nightly --score rubric:helpful --json
    """
    journal = Journal(run_folder(name, current().cwd))
    said = newest(AnnotationFile(journal.folder).read())
    if not said:
        raise NotFound(
            f"nobody has labelled a rollout of {journal.folder.name}",
            hint=f"osmosis view {name}, then label some: key l",
        )
    threshold = journal.plan().pass_threshold
    found = verdicts(said, journal.lines(), threshold)
    known = dict.fromkeys(name for name, _ in found)
    names = [one for one in known if score in (None, one)]
    if score is not None and not names:
        raise NotFound(f"no labelled rollout has a score {score!r}", hint=f"scores: {', '.join(known) or 'none'}")
    rows = [_row(name, {key: found[key] for key in found if key[0] == name}) for name in names]
    return ListResult(rows, COLUMNS, empty="no labelled rollout has a score, or no label says right or wrong")


def _row(name: str, by_hash: Verdicts) -> dict[str, object]:
    found = agreement(pair for pairs in by_hash.values() for pair in pairs)
    assert found is not None
    hashes = sorted(hashed for _, hashed in by_hash)
    between = interval(found.kappa_interval) if found.kappa_interval else f"fewer than {LEAST} labels"
    return {"score": name, **found.to_dict(), "score_hashes": hashes, "between": between}


def _kappa(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


COLUMNS = [
    Column("score", "score"),
    Column("pairs", "labels", "right"),
    Column("agreement", "agree", "right", show=percent),
    Column("kappa", "kappa", "right", show=_kappa),
    Column("between", "95 %"),
    Column("judge_only", "too kind", "right"),
    Column("person_only", "too strict", "right"),
    Column("bias", "bias", "right", show=signed),
]
