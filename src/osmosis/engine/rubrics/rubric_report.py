import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev, pvariance

from osmosis.base.files import write_text
from osmosis.base.jsonable import JsonObject
from osmosis.engine.rubrics.conversations import RubricRecord
from osmosis.engine.rubrics.rubric_run import RubricJob, RubricRun
from osmosis.errors import ValidationError
from osmosis.records.base import utc_now
from osmosis.records.run.rollout import Usage

STATISTICS: Mapping[str, Callable[[list[float]], float]] = {
    "average": fmean,
    "variance": pvariance,
    "stdev": pstdev,
    "min": min,
    "max": max,
}


def summarise(runs: Iterable[RubricRun]) -> dict[str, object]:
    runs = list(runs)
    scores = [run.score for run in runs if run.score is not None]
    figures = {name: figure(scores) if scores else 0.0 for name, figure in STATISTICS.items()}
    return {**figures, "total_runs": len(runs), "success_count": len(scores), "failure_count": len(runs) - len(scores)}


def build_report(
    job: RubricJob, runs: list[RubricRun], *, config_path: Path, data_path: Path, baseline: "Baseline | None" = None
) -> dict[str, object]:
    overall = summarise(runs)
    by_record: dict[int, list[RubricRun]] = {}
    for run in runs:
        by_record.setdefault(run.record_index, []).append(run)
    report: dict[str, object] = {
        "generated_at": utc_now().isoformat(),
        "rubric_id": job.config.id,
        "rubric_source": job.config.source_label,
        "provider": job.config.model_info.get("provider"),
        "model": job.config.model_info.get("model"),
        "number": job.number,
        "config_path": str(config_path),
        "data_path": str(data_path),
        "overall_statistics": overall,
        "usage": sum((Usage.model_validate(run.usage) for run in runs), Usage()).model_dump(),
        "records": [_record_block(record, by_record.get(record.index, [])) for record in job.records],
    }
    if baseline is not None:
        report["baseline_comparison"] = baseline.compare(overall)
    return report


def _record_block(record: RubricRecord, runs: list[RubricRun]) -> dict[str, object]:
    return {
        "id": record.id,
        "record_index": record.index,
        "conversation_id": record.conversation_id,
        "input_record": record.payload,
        "statistics": summarise(runs),
        "runs": [{key: value for key, value in run.__dict__.items() if key != "record_index"} for run in runs],
    }


@dataclass(frozen=True)
class Baseline:
    source: Path
    figures: dict[str, float]

    @classmethod
    def read(cls, path: Path) -> "Baseline":
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as exc:
            raise ValidationError(f"cannot read the baseline {path}: {exc.strerror or exc}") from exc
        except ValueError as exc:
            raise ValidationError(f"the baseline {path} is not JSON: {exc}") from exc
        statistics = data.get("overall_statistics", data) if isinstance(data, dict) else {}
        figures = {
            key: float(value)
            for key, value in (statistics.items() if isinstance(statistics, dict) else ())
            if key in STATISTICS and isinstance(value, (int, float)) and not isinstance(value, bool)
        }
        if not figures:
            raise ValidationError(f"the baseline {path} has no figures: it needs overall_statistics")
        return cls(path, figures)

    def compare(self, current: JsonObject) -> dict[str, object]:
        deltas = {key: current[key] - value for key, value in self.figures.items()}
        return {"source_path": str(self.source), "baseline_statistics": self.figures, "delta_statistics": deltas}


def write_json(path: Path, data: Mapping[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(data, ensure_ascii=False, indent=2, default=str) + "\n", durable=True)
