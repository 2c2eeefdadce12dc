"""Log lines, and `/metrics` for Prometheus, read from the database, without person, run or path."""

import json
import logging
import shutil
import sys
from collections.abc import Iterable
from contextvars import ContextVar
from datetime import datetime, timezone
from logging.handlers import RotatingFileHandler

import sqlalchemy as sa
from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from osmosis._version import __version__
from osmosis.platform import Platform, tables
from osmosis.platform.settings import LogFormat
from osmosis.records.base import utc_now

request_id: ContextVar[str] = ContextVar("osmosis-request-id", default="")
FIELDS = "fields"  # The key of a line's own fields: `log.info("...", extra={FIELDS: {...}})`


def formatter(kind: LogFormat) -> logging.Formatter:
    return JsonLines() if kind == "json" else TextLines("%(asctime)s %(levelname)s %(name)s: %(message)s")


class TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        if id_ := request_id.get():
            first, newline, rest = line.partition("\n")
            line = f"{first} [request {id_}]{newline}{rest}"
        return line


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if id_ := request_id.get():
            fields["request_id"] = id_
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        own = getattr(record, FIELDS, None)
        if isinstance(own, dict):
            fields |= own
        return json.dumps(fields, ensure_ascii=False, default=str)


class LogFile(RotatingFileHandler):
    """A rotated file that says how many lines a full disk did not take."""

    _missing = 0

    def emit(self, record: logging.LogRecord) -> None:
        missing = self._missing
        super().emit(record)
        if missing and self._missing == missing:
            self._missing = 0
            text = f"{missing} lines could not be written here; standard error has them"
            super().emit(logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - of logging.Handler
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        self._missing += 1
        if self._missing == 1:
            text = f"{self.baseFilename} cannot be written ({error.strerror}): until it can, lines are here\n"
            sys.stderr.write(text)


log = logging.getLogger(__name__)

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
UNMATCHED = "(none)"
KIND_OF_TABLE = {tables.Deployment: "serving", tables.Merge: "merge"}


class PlatformMetrics:
    def __init__(self, platform: Platform) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(_Stored(platform))
        self._requests = Histogram(
            "osmosis_request_seconds",
            "Time from a request's headers to the end of its answer",
            ("method", "route", "status"),
            registry=self._registry,
            buckets=BUCKETS,
        )

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, str(status)).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _Stored(Collector):
    def __init__(self, platform: Platform) -> None:
        self._platform = platform

    def describe(self) -> Iterable[Metric]:
        return ()  # nothing is asked of the database before somebody wants to know

    def collect(self) -> Iterable[Metric]:
        about = GaugeMetricFamily("osmosis_info", "This platform", labels=("version", "database"))
        about.add_metric((__version__, self._platform.db.engine.dialect.name), 1)
        free = GaugeMetricFamily("osmosis_data_free_bytes", "Free space where the data folder is")
        free.add_metric((), shutil.disk_usage(self._platform.settings.data_dir).free)
        yield from (about, free)
        up = GaugeMetricFamily("osmosis_database_up", "Whether the database answers")
        try:
            metrics = list(self._of_database())
        except sa.exc.SQLAlchemyError:
            log.warning("the database did not answer a request for metrics", exc_info=True)
            metrics = []
        up.add_metric((), bool(metrics))
        yield from (up, *metrics)

    def _of_database(self) -> Iterable[Metric]:
        runs = GaugeMetricFamily("osmosis_runs", "Runs there are", labels=("kind", "status"))
        jobs = GaugeMetricFamily("osmosis_jobs", "Jobs that wait for a worker, or that one holds", labels=("state",))
        oldest = GaugeMetricFamily("osmosis_oldest_waiting_seconds", "How long the first run of the queue has waited")
        size = GaugeMetricFamily("osmosis_database_bytes", "Size of the database")
        with self._platform.db.read() as session:
            run = tables.Run
            for kind, status, count in session.execute(
                sa.select(run.kind, run.status, sa.func.count()).group_by(run.kind, run.status)
            ):
                runs.add_metric((kind, status), count)
            for table, kind in KIND_OF_TABLE.items():
                for status, count in session.execute(sa.select(table.status, sa.func.count()).group_by(table.status)):
                    runs.add_metric((kind, status), count)
            open_jobs = sa.select(tables.Job.state, sa.func.count()).where(tables.Job.state != tables.QueueState.OVER)
            counts = {state: count for state, count in session.execute(open_jobs.group_by(tables.Job.state))}
            for state in (tables.QueueState.WAITING, tables.QueueState.HELD):
                jobs.add_metric((state,), counts.get(state, 0))
            waits = [
                session.scalar(sa.select(sa.func.min(table.updated_at)).where(table.status == "pending"))
                for table in tables.WORK_TABLES
            ]
            first = min((since for since in waits if since is not None), default=None)
            oldest.add_metric((), (utc_now() - first).total_seconds() if first else 0.0)
            query = "SELECT pg_database_size(current_database())"
            if self._platform.db.is_sqlite:
                query = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
            size.add_metric((), session.scalar(sa.text(query)) or 0)
        yield from (runs, jobs, oldest, size)
