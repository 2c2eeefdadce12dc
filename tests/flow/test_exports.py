"""Runs in the real tools: what a server, a reader or an offline run of each has afterwards, sent once or twice."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uv

import osmosis
from osmosis.serve.server_process import free_port
from support.eval_project import write_project
from support.trace_receiver import TraceReceiver

pytestmark = [pytest.mark.slow, pytest.mark.network]
CLIENTS = (
    *("mlflow-skinny>=3.6", "tensorboardX>=2.6.2", "tensorboard", "trackio>=0.43", "wandb>=0.22"),
    *("opentelemetry-exporter-otlp-proto-http>=1.45", "opentelemetry-exporter-otlp-json-http>=0.66b1"),
)
RUN = ("eval", "-m", "ag:agent", "-d", "d.jsonl", "--eval-fn", "sc:exact", "--model", "offline/calculator", "--n", "2")


def make_environment(folder: Path, *packages: str) -> Path:
    python = folder / "bin" / "python"
    subprocess.run([uv.find_uv_bin(), "venv", "--quiet", "--python", sys.executable, folder], check=True)
    subprocess.run([uv.find_uv_bin(), "pip", "install", "--quiet", "--python", python, *packages], check=True)
    ours = [str(Path(osmosis.__file__).parents[1]), *(path for path in sys.path if path.endswith("site-packages"))]
    (site,) = (folder / "lib").glob("*/site-packages")
    (site / "osmosis.pth").write_text("\n".join(ours))
    return python


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("clients"), *CLIENTS)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_project(tmp_path, agent="ag", score="sc", rows=3)
    return tmp_path


def run_osmosis(python: Path, folder: Path, *words: str, **environ: str) -> str:
    variables = {**os.environ, "TRACKIO_DIR": str(folder / "trackio"), **environ}
    command = [str(python), "-m", "osmosis", *words]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not sent" not in done.stderr, done.stderr
    return done.stdout


def run_code(python: Path, folder: Path, code: str) -> Any:
    done = subprocess.run([str(python), "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


EVENTS = """
import json
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(".osmosis/runs/one/tensorboard").Reload()
print(json.dumps([{tag: len(events.Scalars(tag)) for tag in events.Tags()["scalars"]}, events.Tags()["tensors"]]))
"""


def test_tensorboard_reads_the_curves(python: Path, project: Path) -> None:
    run_osmosis(python, project, *RUN, "--name", "one", "--export", "tensorboard")
    scalars, texts = run_code(python, project, EVENTS)
    assert (scalars["rollout/sc_exact"], scalars["mean/sc_exact"]) == (6, 6)
    assert set(texts) == {"params/text_summary", "figures/text_summary"}
    run_osmosis(python, project, "eval", "export", "one", "--format", "tensorboard")
    assert run_code(python, project, EVENTS) == [scalars, texts]
    folder = project / "boards"
    run_osmosis(python, project, "eval", "export", "one", "--format", "tensorboard", "--url", str(folder))
    assert list(folder.iterdir()) == [folder / "one"]


def test_trackio_has_each_entry_once(python: Path, project: Path) -> None:
    run_osmosis(python, project, *RUN, "--name", "one", "--export", "trackio")
    run_osmosis(python, project, "eval", "export", "one", "--format", "trackio")
    with sqlite3.connect(project / "trackio" / "osmosis.db") as database:
        entries = database.execute("select run_name, step, metrics from metrics order by id").fetchall()
        (config,) = database.execute("select config from configs").fetchone()
    assert [(name, step) for name, step, _ in entries] == [("one", step) for step in (*range(1, 7), 6)]
    assert "mean/sc:exact" in json.loads(entries[0][2])
    assert 0 < json.loads(entries[-1][2])["sc:exact/mean"] <= 1
    assert json.loads(config)["model.name"] == "offline/calculator"


def test_wandb_writes_a_run_for_its_sync(python: Path, project: Path) -> None:
    run_osmosis(python, project, *RUN, "--name", "one", "--export", "wandb", WANDB_MODE="offline")
    (folder,) = (project / "wandb").glob("offline-run-*")
    file = next(folder.glob("*.wandb"))
    code = f"""
import json, struct
from wandb.proto.wandb_internal_pb2 import Record
data, at, parts, steps, run, summary = open({str(file)!r}, "rb").read(), 7, b"", [], None, []
while at + 7 < len(data):  # LevelDB's log
    if 32768 - at % 32768 < 7:
        at += 32768 - at % 32768
    _, length, kind = struct.unpack("<IHB", data[at : at + 7])
    parts, at = (b"" if kind in (1, 2) else parts) + data[at + 7 : at + 7 + length], at + 7 + length
    if kind in (1, 4):
        record = Record.FromString(parts)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            steps.append(record.history.step.num)
        elif kind == "run":
            run = [record.run.display_name, record.run.project, [item.key for item in record.run.config.update]]
        elif kind == "summary":
            summary += [item.key or "/".join(item.nested_key) for item in record.summary.update]
print(json.dumps([steps, run, summary]))
"""
    steps, (name, of_project, config), summary = run_code(python, project, code)
    assert steps[:6] == [1, 2, 3, 4, 5, 6]
    assert (name, of_project) == ("one", "osmosis")
    assert "model.name" in config
    assert "sc:exact/mean" in summary


def test_langfuse_gets_traces_and_scores_of_every_attempt(python: Path, project: Path) -> None:
    receiver = TraceReceiver()
    keys = {"LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": "sk"}
    run_osmosis(python, project, *RUN, "--name", "one", "--export", f"langfuse:{receiver.url}", **keys)
    spans, scores = dict(receiver.spans), dict(receiver.scores)
    traces = {span.trace_id.hex() for span in receiver.roots}
    assert (len(traces), len(scores)) == (6, 6)
    assert {score["traceId"] for score in scores.values()} == traces
    assert {score["metadata"]["attempt"] for score in scores.values()} == {0, 1}
    assert set(receiver.paths) == {"/api/public/otel/v1/traces", "/api/public/scores"}
    assert {headers["authorization"] for headers in receiver.headers} == {"Basic cGs6c2s="}
    run_osmosis(python, project, "eval", "export", "one", "--format", "langfuse", "--url", receiver.url, **keys)
    receiver.shutdown()
    assert (receiver.spans, receiver.scores) == (spans, scores)


def test_weave_and_json_are_the_same_traces(python: Path, project: Path) -> None:
    receiver = TraceReceiver()
    as_json = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}
    run_osmosis(python, project, *RUN, "--name", "one", "--export", f"otlp:{receiver.url}", **as_json)
    assert {headers["content-type"] for headers in receiver.headers} == {"application/json"}
    spans = {id: span.SerializeToString(deterministic=True) for id, span in receiver.spans.items()}
    assert len(receiver.roots) == 6
    weave = {"WF_TRACE_SERVER_URL": receiver.url, "WANDB_API_KEY": "k" * 40, "OTEL_EXPORTER_OTLP_PROTOCOL": ""}
    target = ("--format", "weave", "--url", "team/p")
    run_osmosis(python, project, "eval", "export", "one", *target, **weave)
    receiver.shutdown()
    assert {id: span.SerializeToString(deterministic=True) for id, span in receiver.spans.items()} == spans
    assert receiver.paths[-1] == "/otel/v1/traces"
    assert receiver.headers[-1]["authorization"] == f"Basic {b64encode(b'api:' + b'k' * 40).decode()}"
    assert receiver.resources[-1]["wandb.entity"] == "team"


@pytest.fixture
def mlflow_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, port = tmp_path_factory.mktemp("mlflow"), free_port()
    make_environment(folder / "env", "mlflow>=3.6")
    store = ("--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "files"))
    command = [str(folder / "env" / "bin" / "mlflow"), "server", "--port", str(port), "--workers", "1", *store]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, start_new_session=True)
    url, end = f"http://127.0.0.1:{port}", time.monotonic() + 300
    while time.monotonic() < end:
        try:
            httpx.get(f"{url}/health").raise_for_status()
            break
        except httpx.HTTPError:
            time.sleep(0.5)
    yield url
    os.killpg(server.pid, 15)
    server.wait(30)


@pytest.mark.soak  # the installation and start of the server take a minute
def test_mlflow_has_run_curves_table_and_traces_once(python: Path, project: Path, mlflow_url: str) -> None:
    def ask(path: str, **body: object) -> Any:
        answer = httpx.post(f"{mlflow_url}/api/{path}", json=body, timeout=60)
        answer.raise_for_status()
        return answer.json()

    run_osmosis(python, project, *RUN, "--name", "one", "--export", f"mlflow:{mlflow_url}")
    words = ("eval", "export", "one", "--format", "mlflow", "--url", mlflow_url)
    for _ in range(2):
        (run,) = ask("2.0/mlflow/runs/search", experiment_ids=["1"])["runs"]
        id = run["info"]["run_id"]
        assert (run["info"]["run_name"], run["info"]["status"]) == ("one", "FINISHED")
        params = {param["key"]: param["value"] for param in run["data"]["params"]}
        assert (params["model.name"], params["attempts"]) == ("offline/calculator", "2")
        history = f"{mlflow_url}/api/2.0/mlflow/metrics/get-history?run_id={id}&metric_key="
        assert len(httpx.get(f"{history}rollout/sc:exact").json()["metrics"]) == 6
        assert len(httpx.get(f"{history}sc:exact/mean").json()["metrics"]) == 1
        files = httpx.get(f"{mlflow_url}/api/2.0/mlflow/artifacts/list?run_id={id}").json()["files"]
        assert [file["path"] for file in files] == ["rollouts.json"]
        location = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": "1"}}
        assert len(ask("3.0/mlflow/traces/search", locations=[location], max_results=100)["traces"]) == 6
        run_osmosis(python, project, *words)
