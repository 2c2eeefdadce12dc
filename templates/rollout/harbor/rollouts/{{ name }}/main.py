"""Rollouts in sandboxes: `HarborBackend` runs the workflow of `agent.py` in a Harbor trial for every row.

`_OSMOSIS_ROLLOUT_PORT=8000 python main.py`, then
`osmosis eval --server http://127.0.0.1:8000 -d data.jsonl --model offline/calculator`.

`HARBOR_ENVIRONMENT` says where the sandboxes are: `docker`, `daytona`, ... For a look without any, on Linux or macOS:
`HARBOR_ENVIRONMENT=osmosis.testing.harbor_environment:ProcessEnvironment`, which runs everything as plain processes.
"""

import os
from pathlib import Path

from agent import Config, Multiply

from osmosis import ConcurrencyConfig, Grader, GraderContext, HarborBackend

HERE = Path(__file__).parent


class Correct(Grader):
    """Runs on this machine, after the task's own verifier, whose reward is on the sample."""

    async def grade(self, ctx: GraderContext) -> None:
        turns = ctx.sample.metrics.get("turns", 0)
        ctx.set_reward((ctx.sample.reward or 0.0) if turns <= 4 else 0.0)


backend = HarborBackend(
    HERE / "tasks",
    task_mode="template",
    agent=Multiply,
    workflow_config=Config(name="multiply", concurrency=ConcurrencyConfig(max_concurrent=2)),
    grader=Correct,
    code_dir=HERE,
    environment_config=os.environ.get("HARBOR_ENVIRONMENT", "docker"),
    model_host=os.environ.get("HARBOR_MODEL_HOST"),
)


if __name__ == "__main__":
    import uvicorn

    from osmosis import create_rollout_server

    port = int(os.environ.get("_OSMOSIS_ROLLOUT_PORT", "8000"))
    uvicorn.run(create_rollout_server(backend), host="127.0.0.1", port=port, log_level="warning")
