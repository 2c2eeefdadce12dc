"""Every bad config of the table is refused with exactly the lines the table says; good ones with none."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from osmosis.errors import NotFound, OsmosisError, ValidationError
from osmosis.workspace.config_file import ConfigFile, check_file, load_config, load_eval_config
from osmosis.workspace.layout import Workspace
from support.git_workspace import EVAL, GitWorkspace

EXPERIMENT = """[experiment]
rollout = "multiply"
entrypoint = "main.py"
model_path = "offline/calculator"
dataset = "multiply"
"""
SECRETS = "[secrets]\nrequired = []\n"
TABLE = Path(__file__).with_name("bad_configs.txt").read_text("utf-8")


def cases() -> list[tuple[str, str, str, list[str]]]:
    found = []
    for block in re.split(r"^=== ", TABLE, flags=re.MULTILINE)[1:]:
        head, _, rest = block.partition("\n")
        text, _, said = ("\n" + rest).partition("\n---\n")
        kind, _, name = head.partition(": ")
        text = text.lstrip("\n") + "\n" if text.strip() else ""
        text = text.replace("@experiment\n", EXPERIMENT).replace("@secrets\n", SECRETS)
        found.append((kind, name, text, [line for line in said.split("\n") if line]))
    return found


CASES = cases()


def test_the_table_is_as_long_as_it_should_be() -> None:
    assert len(CASES) >= 80
    assert all(said for _, _, _, said in CASES)


@pytest.mark.parametrize(("kind", "text", "said"), [(k, t, s) for k, _, t, s in CASES], ids=[n for _, n, _, _ in CASES])
def test_bad_config(folder: GitWorkspace, kind: str, text: str, said: list[str]) -> None:
    folder.write("rollouts/multiply/server.py", "")
    path = folder.write(f"configs/{kind}/x.toml", text)
    config, problems = check_file(ConfigFile(kind, path, "x.toml"), Workspace(folder.root))  # type: ignore[arg-type]
    assert [p.line() for p in problems if p.severity == "error"] == said
    assert config is None or any("folder" in p.what or "file" in p.what for p in problems)
    assert all(p.fix for p in problems)


def test_all_problems_of_a_file_arrive_in_one_error(folder: GitWorkspace) -> None:
    text = EXPERIMENT + '[evaluation]\nn = 0\nlimt = 3\n[env]\nlower = "x"\n[secrets]\nrequired = ["A", "A"]\n'
    path = folder.write("configs/eval/x.toml", text)
    with pytest.raises(ValidationError) as caught:
        load_eval_config(path, folder.root)
    issues = caught.value.issues
    assert [i["key"] for i in issues] == ["evaluation.n", "evaluation.limt", "env.lower", "secrets.required"]
    assert [i["where"].split(":")[1] for i in issues] == ["7", "8", "10", "12"]
    assert issues[1]["key_correction"] == "evaluation.limit"
    assert caught.value.message == "invalid eval config configs/eval/x.toml: 4 problems"


def test_a_good_config_is_typed_and_silent(folder: GitWorkspace) -> None:
    config, warnings = load_eval_config(Path("configs/eval/multiply.toml"), folder.root)
    assert warnings == []
    assert (config.experiment.rollout, config.evaluation.n, config.secret_names()) == ("multiply", 1, [])


def test_a_provider_model_without_its_key_is_a_warning(folder: GitWorkspace) -> None:
    folder.write("configs/eval/multiply.toml", EVAL.replace("offline/calculator", "openai/gpt-5-mini"))
    _, warnings = load_eval_config(Path("configs/eval/multiply.toml"), folder.root)
    assert [(w.code, w.severity) for w in warnings] == [("model-key", "warning")]
    assert "OPENAI_API_KEY" in warnings[0].fix


def test_a_key_of_advanced_that_nothing_reads_is_a_warning(folder: GitWorkspace) -> None:
    text = EVAL + '[advanced]\nbase_ur = "http://127.0.0.1:1/v1"\nbackend_flag = 3\n'
    path = folder.write("configs/eval/multiply.toml", text)
    config, warnings = load_eval_config(path, folder.root)
    assert [(w.code, w.severity, w.near) for w in warnings] == [
        ("unread-key", "warning", "advanced.base_url"),
        ("unread-key", "warning", None),
    ]
    assert warnings[0].fix == "did you mean base_url?"
    assert config.to_request()["advanced_config"]["backend_flag"] == 3
    with pytest.raises(ValidationError) as refused:
        load_eval_config(path, folder.root, to_run=True)
    assert [issue["key"] for issue in refused.value.issues] == ["advanced.base_ur", "advanced.backend_flag"]


def test_many_calls_at_once_are_a_warning(folder: GitWorkspace) -> None:
    text = EXPERIMENT + "[training]\nrollout_batch_size = 64\nn_samples_per_prompt = 8\n"
    folder.write("configs/training/multiply.toml", text)
    _, warnings = load_config(Path("configs/training/multiply.toml"), folder.root, "training")
    assert [w.code for w in warnings] == ["many-calls"]
    assert "512 rollouts at once" in warnings[0].what


def test_a_pinned_config_may_name_code_that_is_not_here(folder: GitWorkspace) -> None:
    text = EVAL.replace('rollout = "multiply"', 'rollout = "elsewhere"\ncommit_sha = "abc1234"')
    folder.write("configs/eval/x.toml", text)
    _, warnings = load_eval_config(Path("configs/eval/x.toml"), folder.root)
    assert [w.code for w in warnings] == ["no-rollout"]


@pytest.mark.parametrize(
    ("path", "kind", "error", "message", "hint"),
    [
        ("configs/eval/x.yaml", "eval", ValidationError, "configs/eval/x.yaml is not a .toml file", "configs/eval/"),
        ("x.toml", "eval", ValidationError, "x.toml must live under configs/eval/", "move it to configs/eval/"),
        ("multiplz", "eval", ValidationError, "there is no config or set multiplz", "did you mean multiply?"),
        (
            "configs/training/multiply.toml",
            "eval",
            ValidationError,
            "configs/training/multiply.toml must live under configs/eval/",
            "osmosis train submit configs/training/multiply.toml",
        ),
        ("configs/eval/../../x.toml", "eval", ValidationError, "x.toml must live under configs/eval/", "move it"),
        ("configs/eval/multply.toml", "eval", NotFound, "no such config: configs/eval/multply.toml", "multiply.toml?"),
        (
            "configs/training/a.toml",
            "training",
            NotFound,
            "no such config: configs/training/a.toml",
            "osmosis rollout new",
        ),
    ],
)
def test_where_a_config_must_lie(
    folder: GitWorkspace, path: str, kind: str, error: type[OsmosisError], message: str, hint: str
) -> None:
    with pytest.raises(error) as caught:
        load_config(Path(path), folder.root, kind)  # type: ignore[arg-type]
    assert caught.value.message == message
    assert hint in (caught.value.hint or "")


def test_a_config_that_links_outside_is_refused(folder: GitWorkspace, tmp_path: Path) -> None:
    outside = tmp_path / "outside.toml"
    outside.write_text(EVAL, "utf-8")
    (folder.root / "configs/eval/x.toml").symlink_to(outside)
    with pytest.raises(ValidationError, match="must live under"):
        load_eval_config(Path("configs/eval/x.toml"), folder.root)


def test_a_file_that_is_no_text_is_one_problem(folder: GitWorkspace) -> None:
    path = folder.root / "configs/eval/x.toml"
    path.write_bytes(b'[experiment]\nrollout = "\xff\xfe"\n')
    with pytest.raises(ValidationError) as caught:
        load_eval_config(path, folder.root)
    assert caught.value.issues[0]["message"] == "is not UTF-8 text (byte 24) (fix: save the file as UTF-8)"


def test_lines_are_right_with_windows_line_ends_and_a_byte_order_mark(folder: GitWorkspace) -> None:
    path = folder.root / "configs/eval/x.toml"
    text = (EXPERIMENT + "[evaluation]\nn = 0\n" + SECRETS).replace("\n", "\r\n")
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    with pytest.raises(ValidationError) as caught:
        load_eval_config(path, folder.root)
    assert caught.value.issues[0]["where"] == "configs/eval/x.toml:7: evaluation.n"


def test_random_files_are_checked_without_a_crash(folder: GitWorkspace) -> None:
    draw = random.Random(7)
    pieces = [
        "[experiment]",
        "[[experiment]]",
        "[secrets]",
        "[env]",
        "[a.b]",
        "rollout",
        "n",
        "required",
        " = ",
        "=",
        "\n",
    ]
    pieces += ['"x"', "'y'", '"""', "'''", "1", "1e400", "-0", "nan", "inf", "true", "[", "]", "{", "}", ",", ".", "#"]
    pieces += ["\\", "\t", "\x00", "é", "2026-01-01", "0x1F", "1_000", "\ufeff", "\r", "A", "_OSMOSIS_X", "secrets"]
    lines = (EXPERIMENT + "[evaluation]\nn = 3\n" + SECRETS).splitlines(keepends=True)
    workspace = Workspace(folder.root)
    path = folder.root / "configs/eval/x.toml"
    for round_ in range(400):
        if round_ % 2:
            mixed = list(lines)
            for _ in range(draw.randint(1, 3)):
                mixed.insert(draw.randrange(len(mixed) + 1), "".join(draw.choices(pieces, k=draw.randint(1, 5))))
            text = "".join(mixed)
        else:
            text = "".join(draw.choices(pieces, k=draw.randint(0, 25)))
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        config, problems = check_file(ConfigFile("eval", path, "x.toml"), workspace)
        assert config is not None or problems
        assert all(p.where.startswith("x.toml") for p in problems)
