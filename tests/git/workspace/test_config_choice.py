"""`config show` and `config set` find the config a person means without its name, and refuse to guess between two."""

from __future__ import annotations

from support.command_line import run_command
from support.git_workspace import EVAL, GitWorkspace

TRAINING = EVAL.partition("[secrets]")[0]


def test_a_key_that_fits_one_config_needs_no_name(folder: GitWorkspace) -> None:
    folder.write("configs/training/multiply.toml", TRAINING)
    done = run_command("--json", "config", "set", "evaluation.n", "4", cwd=folder.root)
    assert (done.code, done.json["resource"]["path"]) == (0, "configs/eval/multiply.toml")
    done = run_command("--json", "config", "set", "training.lr", "1e-5", cwd=folder.root)
    assert (done.code, done.json["resource"]["path"]) == (0, "configs/training/multiply.toml")
    assert "lr = 1e-5" in (folder.root / "configs/training/multiply.toml").read_text()
    shown = run_command("--json", "config", "show", "--resolved", cwd=folder.root).json
    assert {"key": "evaluation.n", "value": 4}.items() <= next(
        row for row in shown["items"] if row["key"] == "evaluation.n"
    ).items()


def test_a_key_that_fits_two_is_not_guessed(folder: GitWorkspace) -> None:
    folder.write("configs/training/multiply.toml", TRAINING)
    done = run_command("--json", "config", "set", "experiment.dataset", "other", cwd=folder.root)
    assert done.code == 1
    assert "configs/eval/multiply.toml, configs/training/multiply.toml" in done.error["details"]["hint"]
    assert (folder.root / "configs/eval/multiply.toml").read_text() == EVAL


def test_several_keys_are_set_together_or_not_at_all(folder: GitWorkspace) -> None:
    done = run_command("--json", "config", "set", "evaluation.n", "4", "evaluation.limit", "20", cwd=folder.root)
    assert [(one["key"], one["after"]) for one in done.json["resource"]["changed"]] == [
        ("evaluation.n", 4),
        ("evaluation.limit", 20),
    ]
    before = (folder.root / "configs/eval/multiply.toml").read_text()
    assert "n = 4" in before
    assert "limit = 20" in before
    done = run_command("--json", "config", "set", "evaluation.n", "5", "evaluation.limit", "none", cwd=folder.root)
    assert done.code == 1
    assert (folder.root / "configs/eval/multiply.toml").read_text() == before
