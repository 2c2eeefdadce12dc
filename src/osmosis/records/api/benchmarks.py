"""Benchmarks and their runs, as clients of generation 0.3 read them. A row of an agent has `agent_index`, `harness`,
`model`, `status`, the `id` and `run_name` of its evaluation, and with figures also `rank`, `n_tasks`, `pass_at_1` (its
`value`, with the bounds `low` and `high` of the 95 % interval), `pass_at_k`, and the means of an attempt."""

from typing import Annotated, ClassVar

from pydantic import Field

from osmosis.base.jsonable import JsonObject
from osmosis.records.api.body import Body, OrEmpty, Page
from osmosis.records.api.runs import RunDetail, RunRow
from osmosis.records.run.status import RunKind

Rows = Annotated[list[JsonObject], OrEmpty]


class BenchmarkPage(Page[Body]):
    """`source_ref` is the name for configs and commands."""

    rows_key = "benchmarks"
    benchmarks: Rows = Field(default_factory=list)


class BenchmarkDetail(Body):
    benchmark: JsonObject
    """As in lists, with its `tasks`: `name`, `category` and `difficulty`."""
    leaderboard: Rows = Field(default_factory=list)


class BenchmarkRunRow(RunRow):
    benchmark_name: str | None = None
    agent_count: int | None = None
    best_pass_at_1: float | None = None
    ingested_results: int | None = None
    expected_results: int | None = None


class BenchmarkRunPage(Page[BenchmarkRunRow]):
    rows_key = "benchmark_runs"
    benchmark_runs: Annotated[list[BenchmarkRunRow], OrEmpty] = Field(default_factory=list)


class BenchmarkRunDetail(RunDetail):
    kind: ClassVar[RunKind] = "benchmark"
    benchmark_run: BenchmarkRunRow
    configuration: JsonObject | None = None
    agents: Rows = Field(default_factory=list)
    """The best first."""
    agent_metrics: Rows = Field(default_factory=list)
    """Those of `agents` with figures."""

    @property
    def run(self) -> BenchmarkRunRow:
        return self.benchmark_run
