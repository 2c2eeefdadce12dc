"""Every template renders to a workspace that is in order; what is in the way is named before anything is written."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel
from uv import find_uv_bin

from osmosis.base.installation import build_wheel
from osmosis.cli.main import main
from osmosis.errors import Conflict, NotFound, ValidationError
from osmosis.records.config.benchmark import AgentModel, BenchmarkAgent, BenchmarkTasks, Execution
from osmosis.records.config.optimize import Optimize, OptimizeConfig
from osmosis.records.config.run_config import EvalConfig, Evaluation, Training, TrainingConfig
from osmosis.workspace.config_file import ConfigFile, check_benchmark, load_config, load_eval_config
from osmosis.workspace.layout import Workspace
from osmosis.workspace.preflight import check_folder
from osmosis.workspace.templates import (
    list_templates,
    read_record,
    render_rollout,
    render_workspace,
    template_files,
    templates_dir,
)
from support import template_bundle as bundle

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAMES = [t.name for t in list_templates()]


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a rollout of every template, each called `my-<template>`."""
    root = tmp_path_factory.mktemp("rendered") / "demo"
    render_workspace(root, {"name": "demo"})
    for name in NAMES:
        render_rollout(f"my-{name}", name, root)
    return root


def test_the_templates_of_the_product_are_there() -> None:
    assert set(NAMES) >= {"empty", "multiply", "calculator", "writing", "mcp", "openai-agents", "strands", "harbor"}


def test_the_bundle_holds_what_is_in_the_folder() -> None:
    """When this fails: raise templates/VERSION and run `PYTHONPATH=tests python -m support.template_bundle`."""
    assert bundle.is_fresh(templates_dir())


def test_a_rendered_workspace_is_in_order(rendered: Path) -> None:
    assert check_folder(Workspace(rendered)) == []
    assert ".osmosis/" in (rendered / ".gitignore").read_text().splitlines()
    assert ".env" in (rendered / ".gitignore").read_text().splitlines()


def test_no_placeholder_is_left(rendered: Path) -> None:
    for path in rendered.rglob("*"):
        assert "{{" not in path.name
        if path.is_file() and path.name != "instruction.md":  # where Harbor's own template takes the row's prompt
            text = path.read_text("utf-8")
            assert "{{" not in text, path
            assert "{%" not in text, path


@pytest.mark.parametrize("name", NAMES)
def test_each_rollout_is_complete(rendered: Path, name: str) -> None:
    rollout = f"my-{name}"
    config, warnings = load_eval_config(Path(f"configs/eval/{rollout}.toml"), rendered)
    assert warnings == []
    assert config.experiment.model_path.startswith("offline/")
    assert config.evaluation == Evaluation(), "keys with a default are comments"
    training, warnings = load_config(Path(f"configs/training/{rollout}.toml"), rendered, "training")
    assert warnings == []
    if name != "train":  # which is there to train a tiny model in a minute
        assert training.training == Training()
    ast.parse((rendered / "rollouts" / rollout / "main.py").read_text("utf-8"), feature_version=(3, 10))
    project = tomllib.loads((rendered / "rollouts" / rollout / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["name"] == rollout
    assert any(line.startswith("osmosis-ai") and line.endswith(">=1") for line in project["dependencies"])
    record = read_record(rendered / "rollouts" / rollout)
    assert record is not None
    assert (record.template, record.answers["name"]) == (name, rollout)
    assert f"# {rollout}" in (rendered / "rollouts" / rollout / "README.md").read_text("utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_each_dataset_can_be_uploaded(rendered: Path, name: str) -> None:
    lines = (rendered / "data" / f"my-{name}.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) >= 4
    assert len({frozenset(row) for row in rows}) == 1
    assert all(row["user_prompt"] and row["ground_truth"] for row in rows)


def test_the_multiply_data_are_what_its_generator_makes(rendered: Path) -> None:
    space: dict[str, object] = {"__name__": "made"}
    source = (rendered / "rollouts/my-multiply/make_data.py").read_text("utf-8")
    exec(compile(source, "make_data.py", "exec"), space)
    rows = space["rows"](240)  # type: ignore[operator]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    assert (rendered / "data/my-multiply.jsonl").read_text("utf-8") == text
    for row in rows:
        a, b = row["user_prompt"].removeprefix("Multiply ").removesuffix(".").split(" and ")
        assert abs(float(a) * float(b) - float(row["ground_truth"])) < 1e-4


def test_comments_of_a_config_say_the_real_defaults(rendered: Path) -> None:
    text = (rendered / "configs/eval/my-multiply.toml").read_text("utf-8")
    defaults = Evaluation()
    for key in ("pass_threshold", "agent_workflow_timeout_s", "grader_timeout_s"):
        assert f"# {key} = {getattr(defaults, key):g}" in text.replace("1.0", "1")
    text = (rendered / "configs/training/my-multiply.toml").read_text("utf-8")
    for key in Training.model_fields:
        line = next(line for line in text.splitlines() if line.startswith(f"# {key} = "))
        assert float(line.partition(" = ")[2].partition("#")[0]) == getattr(Training(), key)


@pytest.mark.parametrize(("kind", "config"), [("eval", EvalConfig), ("training", TrainingConfig)])
def test_the_default_config_explains_every_key(rendered: Path, kind: str, config: type[EvalConfig]) -> None:
    """Required keys are set, every other one is commented out, with a value that is right."""
    text = (rendered / "configs" / kind / "default.toml").read_text("utf-8")
    written = tomllib.loads(text)
    assert config.model_validate(written).experiment.entrypoint == "main.py"
    for name, field in config.model_fields.items():
        for key, about in getattr(field.annotation, "model_fields", {}).items():
            if about.is_required() or key == "entrypoint":
                assert key in written[name]
                continue
            ((start, value),) = re.findall(rf"^# ({key} = )(.+)$", text.partition(f"[{name}]")[2], re.M)[:1]
            parsed = tomllib.loads(f"{start}{value}")[key]
            default = about.get_default(call_default_factory=True)
            assert default in (None, [], {}) or isinstance(default, BaseModel) or parsed == default, key
            if name != "advanced" and key not in (
                "command",
                "grader",
                "commit_sha",
                "reduce",
                "score_min",
                "score_max",
            ):
                # The others need one more key or one less, or the name of a secret.
                config.model_validate({**written, name: {**written.get(name, {}), key: parsed}})


def test_the_default_optimize_config_explains_every_key(rendered: Path) -> None:
    text = (rendered / "configs/optimize/default.toml").read_text("utf-8")
    shown = tomllib.loads(re.sub(r"^# ([a-z_]+ = )", r"\1", text.partition("\n[optimize]\n")[2], flags=re.M))
    assert {key for key in shown if key != "secrets"} == set(Optimize.model_fields)
    given = OptimizeConfig.model_validate(tomllib.loads(text)).optimize
    assert given == Optimize(reflection_model="offline/reflection")
    Optimize.model_validate({key: value for key, value in shown.items() if key != "secrets"})


def test_the_default_benchmark_config_explains_every_key(rendered: Path) -> None:
    path = rendered / "configs" / "benchmark" / "default.toml"
    config, problems = check_benchmark(ConfigFile("benchmark", path, path.name))
    assert (config is not None, problems) == (True, [])
    text = path.read_text("utf-8")
    for table in (BenchmarkAgent, AgentModel, BenchmarkTasks, Execution):
        for key, about in table.model_fields.items():
            assert re.search(rf"^(# |model = .*|# model = .*){key} = ", text, re.M) or about.is_required(), key
    execution = tomllib.loads(re.sub(r"^# ([a-z_]+ = )", r"\1", text.partition("[execution]")[2], flags=re.M))
    shown = {key: value for key, value in execution.items() if key in Execution.model_fields}
    assert (
        Execution.model_validate(shown).model_copy(update=dict.fromkeys(("judge_model", "judge_api_key_secret")))
        == Execution()
    )


def test_every_command_of_the_pages_is_one(rendered: Path) -> None:
    """Each line is asked for its help, so that a renamed command or option cannot stay in the text."""
    pages = [path for path in rendered.rglob("*") if path.suffix in (".md", ".toml", ".example")]
    text = "\n".join(path.read_text("utf-8") for path in pages if ".claude" not in path.parts)
    lines = {*re.findall(r"`(osmosis [^`]+)`", text), *re.findall(r"^(osmosis .+)$", text, re.M)}
    assert len(lines) > 60
    for line in sorted(lines):
        words = shlex.split(line, comments=True)[1:]
        assert main([*words, "--help"], environ={"HOME": str(rendered)}, cwd=rendered) == 0, line


def test_each_skill_says_what_it_is_for_and_claude_finds_it(rendered: Path) -> None:
    skills = sorted((rendered / ".claude" / "skills").glob("*/SKILL.md"))
    assert len(skills) == 7
    for path in skills:
        head = yaml.safe_load(path.read_text("utf-8").split("---")[1])
        assert head["name"] == path.parent.name
        assert "Use " in head["description"]


def test_compiled_files_of_an_installation_are_no_part_of_a_template(tmp_path: Path) -> None:
    """pip compiles what it installs; git then refuses what its own .gitignore names."""
    wheel, installed = build_wheel(tmp_path / "cache"), tmp_path / "installed"
    install = [find_uv_bin(), "pip", "install", "-q", "--no-deps", "--no-index", "--compile-bytecode"]
    subprocess.run([*install, "--python", sys.executable, "--target", str(installed), str(wheel.path)], check=True)
    assert list((installed / "osmosis" / "_templates").rglob("*.pyc"))
    environ = {**os.environ, "PYTHONPATH": str(installed), "OSMOSIS_CONFIG_DIR": str(tmp_path)}
    words = ["init", "demo", "--no-platform", "--template", "multiply"]
    done = subprocess.run(
        [sys.executable, "-m", "osmosis", *words], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "demo").rglob("*.pyc"))


def test_the_harbor_template_is_the_example_that_is_tested(rendered: Path) -> None:
    example = Path(__file__).parents[3] / "examples" / "harbor"
    for path in example.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts and path.name != "data.jsonl":
            made = rendered / "rollouts" / "my-harbor" / path.relative_to(example)
            assert made.read_text("utf-8") == path.read_text("utf-8")


def test_the_schema_line_leads_to_the_schema(rendered: Path) -> None:
    config = rendered / "configs/eval/my-empty.toml"
    first = config.read_text("utf-8").splitlines()[0]
    target = (config.parent / first.removeprefix("#:schema ")).resolve()
    schema = json.loads(target.read_text("utf-8"))
    assert schema["properties"].keys() == EvalConfig.model_fields.keys()
    assert schema["$defs"]["Experiment"]["properties"]["rollout"]["description"]


def test_answers_go_into_the_config(tmp_path: Path) -> None:
    for folder in ("rollouts", "configs"):
        (tmp_path / folder).mkdir()
    render_rollout("a", "multiply", tmp_path, {"model": "openai/gpt-5-mini"})
    config, warnings = load_eval_config(Path("configs/eval/a.toml"), tmp_path)
    assert (config.experiment.model_path, config.secret_names(), warnings) == (
        "openai/gpt-5-mini",
        ["OPENAI_API_KEY"],
        [],
    )
    answers = {"model": 'odd "name"', "base_url": "http://127.0.0.1:9/v1", "api_key_env": "MY_KEY"}
    render_rollout("b", "multiply", tmp_path, answers)
    config, _ = load_eval_config(Path("configs/eval/b.toml"), tmp_path)
    assert config.experiment.model_path == 'odd "name"'
    assert (config.advanced.base_url, config.advanced.api_key_env) == ("http://127.0.0.1:9/v1", "MY_KEY")
    assert config.secret_names() == ["MY_KEY"]


def test_all_conflicts_are_named_and_nothing_is_written(tmp_path: Path) -> None:
    render_rollout("a", "multiply", tmp_path)
    (tmp_path / "rollouts/a/main.py").write_text("mine")
    (tmp_path / "data/a.jsonl").write_text("mine too")
    (tmp_path / "rollouts/a/README.md").unlink()
    with pytest.raises(Conflict) as caught:
        render_rollout("a", "multiply", tmp_path)
    assert caught.value.details["paths"] == ["data/a.jsonl", "rollouts/a/main.py"]
    assert not (tmp_path / "rollouts/a/README.md").exists()
    render_rollout("a", "multiply", tmp_path, force=True)
    assert "AgentWorkflow" in (tmp_path / "rollouts/a/main.py").read_text()


def test_nothing_is_written_through_a_link_or_a_file(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root = tmp_path / "ws"
    root.mkdir()
    (root / "rollouts").symlink_to(outside)
    (root / "data").write_text("a file")
    with pytest.raises(Conflict) as caught:
        render_rollout("a", "multiply", root, force=True)
    assert caught.value.details["paths"] == ["data", "rollouts"]
    assert list(outside.iterdir()) == []


def test_unknown_templates_and_names(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        render_rollout("a", "multiplication", tmp_path)
    assert caught.value.hint == "did you mean multiply? (osmosis template show)"
    with pytest.raises(ValidationError):
        render_rollout("../a", "multiply", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_template_files_are_listed_without_a_workspace() -> None:
    assert "rollouts/<name>/main.py" in template_files("multiply")
