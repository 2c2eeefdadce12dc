"""`python -m osmosis.platform.run_upload.reading`: reads and judges the files of one upload, as a process of its own.

Given `{"files": {path: where it lies}, "run": LocalRun, "draft": file, "annotations": file}`, it writes the columns of
one rollout a line to the draft, what people said to the other file, and says `{"rows", "report"}`. Everything that can
be wrong with an upload is found here, before a writer's session is open.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import orjson
from pydantic import ValidationError as PydanticError

from osmosis.base.json_types import JsonObject
from osmosis.base.reader import reader_main
from osmosis.errors import ValidationError
from osmosis.metrics.summary import Summary, Terms
from osmosis.platform.services import rollouts
from osmosis.records.annotation import Annotation
from osmosis.records.report import Report

from .manifest import ANNOTATIONS, REPORT, UploadedRun
from .trajectories import read_all


def read(given: JsonObject) -> object:
    files: dict[str, str] = given["files"]

    def find(path: str) -> Path | None:
        return Path(files[path]) if path in files else None

    local = UploadedRun.model_validate(given["run"])
    evaluation = local.evaluation_config
    summary = Summary(Terms(evaluation.n, evaluation.pass_threshold))
    seen: set[int] = set()
    spent_ms = 0.0
    with Path(given["draft"]).open("wb") as out:
        for rollout in read_all(find):
            summary.add(rollout)
            seen.add(rollout.row_index)
            spent_ms += rollout.duration_ms
            out.write(orjson.dumps(rollouts.columns_of(rollout)) + b"\n")
    selected = local.experiment_config.dataset.selected_source_rows
    rows = sorted(set(selected) | seen if isinstance(selected, list) else seen)
    report = _given_report(find(REPORT)) or summary.report(rows=len(rows), duration_ms=spent_ms)
    _write_annotations(find(ANNOTATIONS), Path(given["annotations"]))
    if report.completed != summary.completed:
        raise ValidationError(f"{REPORT} describes {report.completed} rollouts, but {summary.completed} were uploaded")
    return {"rows": rows, "report": report.to_dict()}


def _write_annotations(path: Path | None, draft: Path) -> None:
    """What people said, a record a line; lines that are none are passed over, as the journal's reader does."""
    with draft.open("wb") as out, (path or draft).open("rb") as lines:
        for line in lines if path is not None else ():
            with contextlib.suppress(PydanticError):
                out.write(Annotation.model_validate_json(line).to_line())


def _given_report(path: Path | None) -> Report | None:
    if path is None:
        return None
    try:
        return Report.model_validate_json(path.read_bytes())
    except PydanticError as error:
        raise ValidationError(
            f"{REPORT} is not a report that this version can read: {error.errors()[0]['msg']}"
        ) from error


if __name__ == "__main__":
    sys.exit(reader_main(read))
