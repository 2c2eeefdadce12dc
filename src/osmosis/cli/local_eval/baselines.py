"""Further models beside the one of a local run: the same rows, agent and scores, each in a journal of its own.

All of them are checked and asked once before the first row is; one that breaks later keeps nothing of the others back.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...engine.results import summary_part
from ...errors import OsmosisError, ValidationError
from ...llm import probe
from .signals import run_stoppable

if TYPE_CHECKING:
    from ...engine.journal import Journal
    from ...records.report import Report
    from .session import Session


def prepare_baselines(main: Session) -> list[Session]:
    """A prepared session for each baseline of this run; raises what `Session.prepare` raises."""
    from .session import LocalRun, Session

    run, names, prepared = main.run, {main.plan.name}, []
    for spec in run.baselines:
        stem = f"{main.plan.name}--{re.sub(r'[^A-Za-z0-9._-]+', '-', spec.name)}"[:92]
        name = next(n for i in itertools.count(1) if (n := stem if i == 1 else f"{stem}-{i}") not in names)
        names.add(name)
        child = LocalRun(
            main.plan.model_copy(update={"name": name, "model": spec}, deep=True),
            run.base_dir,
            run.runs_dir,
            grader=run.grader,
            server_key_env=run.server_key_env,
            secrets=run.secrets,
            yes=run.yes,
            quiet=run.quiet,
            retry_failed=run.retry_failed,
        )
        session = Session(main.ctx, child)
        session.prepare()
        prepared.append(session)
    return prepared


async def probe_baselines(sessions: Sequence[Session]) -> None:
    """One tiny call to each that has something left to ask."""
    for session in sessions:
        if not session.asks_model:
            continue
        model = session.open_model(session.plan.model, session.key)
        try:
            await probe(model)
        finally:
            await model.close()


def run_baselines(main: Session) -> tuple[dict[str, Any], bool]:
    """Each baseline's part of the results document, by its model; and whether somebody interrupted."""
    found: dict[str, Any] = {}
    interrupted = False
    for session in main.baselines:
        spec = session.plan.model
        key = spec.name if spec.name not in found else f"{spec.name}@{spec.base_url or session.plan.name}"
        main.say(f"baseline {key}: run {session.plan.name}")
        try:
            report, interrupted = run_stoppable(session.go, session.say)
        except OsmosisError as error:
            main.notes.append(f"baseline {key}: {error.message}")
            found[key] = {"name": session.plan.name, "error": error.message}
            continue
        found[key] = _beside(main, session.journal, report)
        if interrupted:
            break
    return found, interrupted


def _beside(main: Session, journal: Journal, report: Report) -> dict[str, Any]:
    """A baseline's summary and its comparison with the run."""
    from ...metrics.compare import compare

    part: dict[str, Any] = {"name": journal.folder.name, "summary": summary_part(report)}
    try:
        threshold = journal.plan().pass_threshold
        found = compare(journal.outcomes(), main.journal.outcomes(), threshold=threshold)
    except ValidationError as error:
        main.notes.append(f"against {journal.folder.name}: {error.message}")
        return part
    interval = f" [{found.interval.low:+.3f}, {found.interval.high:+.3f}]" if found.interval else ""
    main.notes.append(
        f"against {journal.folder.name}: {found.mean_b:.3f} vs {found.mean_a:.3f}, "
        f"difference {found.difference:+.3f}{interval}, {found.verdict}"
    )
    part["comparison"] = found.to_dict()
    return part
