"""Tools that keep parameters, curves and figures of runs: MLflow, TensorBoard, Trackio and W&B. Ids and times follow
from the run, so that sending twice is once. Each class imports its tool's library, which is an extra of its own."""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

import orjson

from osmosis.bridges.export_stream import ExportedRun, Point, Records, Rows

_MOST_METRICS, _MOST_PARAMS = 1000, 100


class MlflowExporter:
    """The run is found again by the tag `osmosis.run`. Of an evaluation it has the traces, too."""

    def __init__(self, run: ExportedRun) -> None:
        import mlflow

        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # it is tried again anyway
        self._client, self._entities, self._at = mlflow.MlflowClient(run.address or None), mlflow.entities, 0.0
        stored = self._client.get_experiment_by_name(run.project)
        experiment = stored.experiment_id if stored else self._client.create_experiment(run.project)
        runs = self._client.search_runs([experiment], f"tags.`osmosis.run` = '{run.id}'", max_results=1)
        created = runs or [self._client.create_run(experiment, tags={"osmosis.run": run.id}, run_name=run.name)]
        self._id, self._traces = created[0].info.run_id, None
        params = [mlflow.entities.Param(_plain(key), str(value)[:500]) for key, value in run.params.items()]
        for at in range(0, 0 if runs else len(params), _MOST_PARAMS):
            self._client.log_batch(self._id, params=params[at : at + _MOST_PARAMS])
        if run.kind == "eval" and run.address:
            from osmosis.bridges.otlp import OtlpExporter

            user, password, token = (os.environ.get(f"MLFLOW_TRACKING_{n}") for n in ("USERNAME", "PASSWORD", "TOKEN"))
            headers = {"x-mlflow-experiment-id": experiment} | ({"Authorization": f"Bearer {token}"} if token else {})
            key = f"{user}:{password}" if user else ""
            self._traces = OtlpExporter(run, f"{run.address.rstrip('/')}/v1/traces", headers, basic=key)

    def send(self, records: Records) -> None:
        self._log([(key, value, p.at, p.step) for p in records.points for key, value in p.values.items()])
        if self._traces is not None:
            self._traces.send(records)

    def finish(self, figures: Mapping[str, float], rows: Rows) -> None:
        self._log([(key, value, self._at, 0) for key, value in figures.items()])
        if rows:
            columns = list(dict.fromkeys(name for row in rows for name in row))
            data = [[row.get(name) for name in columns] for row in rows]
            self._client.log_dict(self._id, {"columns": columns, "data": data}, "rollouts.json")
            self._client.set_tag(self._id, "mlflow.loggedArtifacts", '[{"path": "rollouts.json", "type": "table"}]')
        self._client.set_terminated(self._id)

    def _log(self, values: Sequence[tuple[str, float, float, int]]) -> None:
        metrics = [self._entities.Metric(_plain(key), value, int(at * 1000), step) for key, value, at, step in values]
        self._at = max([self._at, *(at for _, _, at, _ in values)])
        for start in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._id, metrics=metrics[start : start + _MOST_METRICS])


class TensorboardExporter:
    def __init__(self, run: ExportedRun) -> None:
        from tensorboardX import SummaryWriter

        folder = Path(run.address).expanduser() / run.name if run.address else Path(run.folder) / "tensorboard"
        for file in folder.glob("events.out.tfevents.*.osmosis"):
            file.unlink()
        self._writer = SummaryWriter(str(folder), filename_suffix=".osmosis")
        self._write("params", run.params)

    def send(self, records: Records) -> None:
        for point in records.points:
            for key, value in point.values.items():
                self._writer.add_scalar(key, value, point.step, point.at)
        self._writer.flush()

    def finish(self, figures: Mapping[str, float], rows: Rows) -> None:
        self._write("figures", figures)
        self._writer.close()

    def _write(self, title: str, values: Mapping[str, object]) -> None:
        lines = ["| name | value |", "| --- | --- |", *(f"| {key} | {value} |" for key, value in values.items())]
        self._writer.add_text(title, "\n".join(lines), 0)


class TrackioExporter:
    """The database of this machine (`trackio show`, `trackio sync`). Ids of entries follow from their content."""

    def __init__(self, run: ExportedRun) -> None:
        import trackio

        self._run, self._last, self._storage = run, Point(0, 0.0, {}), trackio.SQLiteStorage

    def send(self, records: Records) -> None:
        run, points, self._last = self._run, records.points, records.points[-1]
        values, steps = [dict(point.values) for point in points], [point.step for point in points]
        times = [datetime.fromtimestamp(point.at, timezone.utc).isoformat() for point in points]
        ids = [_digest(orjson.dumps([run.id, *point]).decode()) for point in points]
        config = {**run.params, "_Created": times[0]}
        self._storage.bulk_log(run.project, run.name, values, steps, times, config, ids, run_id=_digest(run.id))

    def finish(self, figures: Mapping[str, float], rows: Rows) -> None:
        if figures:
            self.send(Records([self._last._replace(values=figures)], []))


class WandbExporter:
    """Steps that are there are not taken twice. With `WANDB_MODE=offline` the run is in `./wandb`, for `wandb sync`."""

    def __init__(self, run: ExportedRun) -> None:
        import wandb

        settings = wandb.Settings(console="off", silent=True, x_disable_stats=True, disable_git=True, disable_code=True)
        settings.base_url = run.address or settings.base_url
        self._run = wandb.init(
            id=_digest(run.id)[:16],
            resume="allow",
            settings=settings,
            project=run.project,
            name=run.name,
            job_type=run.kind,
            config=dict(run.params),
        )

    def send(self, records: Records) -> None:
        for point in records.points:
            if point.step >= self._run.step:
                self._run.log({**point.values, "_timestamp": point.at}, step=point.step)

    def finish(self, figures: Mapping[str, float], rows: Rows) -> None:
        self._run.summary.update(dict(figures))
        self._run.finish()


def _plain(key: str) -> str:
    return re.sub(r"[^\w./: -]", "_", key)[:250]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
