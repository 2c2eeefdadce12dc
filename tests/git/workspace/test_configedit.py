"""Setting one value: everything else of the file stays, and a wrong value changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from osmosis.cli.workspace.config import list_values, set_values
from osmosis.errors import ValidationError
from osmosis.workspace.config_file import ConfigFile, check_file
from osmosis.workspace.layout import ConfigKind, Workspace
from support.git_workspace import GitWorkspace

TEXT = """# who wrote this
#:schema ../eval.schema.json
[experiment]
rollout   = "multiply"   # aligned by hand
entrypoint = "main.py"
model_path = 'offline/calculator'
dataset = "multiply"

[evaluation]
# limit = 200
n = 3                    # three is enough

[secrets]
required = [
  "A",  # the first
]
"""


def file_of(folder: GitWorkspace, text: str = TEXT, kind: ConfigKind = "eval") -> ConfigFile:
    path = folder.write(f"configs/{kind}/x.toml", text)
    return ConfigFile(kind, path, f"configs/{kind}/x.toml")


def set_in(folder: GitWorkspace, key: str, value: str) -> str:
    file = file_of(folder)
    set_values(file, Workspace(folder.root), {key: value})
    return file.path.read_text("utf-8")


@pytest.mark.parametrize(
    ("key", "value", "before", "after"),
    [
        ("evaluation.n", "5", "n = 3                    # three", "n = 5                    # three"),
        ("experiment.dataset", "other data", 'dataset = "multiply"', 'dataset = "other data"'),
        ("experiment.dataset", '"quoted"', 'dataset = "multiply"', 'dataset = "quoted"'),
        ("experiment.model_path", "openai/gpt-5-mini", "'offline/calculator'", '"openai/gpt-5-mini"'),
    ],
)
def test_one_value_changes_and_nothing_else(
    folder: GitWorkspace, key: str, value: str, before: str, after: str
) -> None:
    assert set_in(folder, key, value) == TEXT.replace(before, after)


def test_a_key_that_is_a_comment_of_its_table_becomes_a_key(folder: GitWorkspace) -> None:
    assert set_in(folder, "evaluation.limit", "5") == TEXT.replace("# limit = 200", "limit = 5")
    text = TEXT.replace("# limit = 200\nn = 3  ", "# limit = 200            # first rows\n# n = 3  ")
    text = text.replace(
        "[secrets]", '# [env]\n# LOG_LEVEL = "INFO"\n# batch_size = "no key of [evaluation]"\n\n[secrets]'
    )
    file = file_of(folder, text)
    set_values(file, Workspace(folder.root), {"evaluation.limit": "7", "evaluation.n": "2"})
    after = text.replace("# limit = 200 ", "limit = 7 ").replace("# n = 3 ", "n = 2 ")
    assert file.path.read_text("utf-8") == after
    file = ConfigFile(file.kind, file.path, file.shown)
    set_values(file, Workspace(folder.root), {"evaluation.batch_size": "4"})
    assert file.path.read_text("utf-8") == after.replace("# three is enough\n", "# three is enough\nbatch_size = 4\n")


def test_new_keys_and_tables_are_added(folder: GitWorkspace) -> None:
    assert "pass_threshold = 0.5" in set_in(folder, "evaluation.pass_threshold", "0.5")
    text = set_in(folder, "env.LOG_LEVEL", "DEBUG")
    assert text.startswith(TEXT)
    assert '[env]\nLOG_LEVEL = "DEBUG"' in text
    assert "[advanced]\nbackend_flag = 3" in set_in(folder, "advanced.backend_flag", "3")
    for value in ("3", "{seed = 3}", '{"seed": 3}'):
        key = "advanced.params.seed" if value == "3" else "advanced.params"
        file = file_of(folder)
        assert set_values(file, Workspace(folder.root), {key: value})[key][1] in (3, {"seed": 3})
        config, problems = check_file(file, Workspace(folder.root))
        assert problems == []
        assert config.advanced.params == {"seed": 3}
    resources = set_in(folder, "advanced.resources.cpus", "2")
    assert "resources = {cpus = 2}" in resources
    assert 'n = 2\ngroup_by = ["kind"]\n\n# [env]' in _set(
        folder,
        TEXT.replace("[secrets]", "# [env]\n\n[secrets]").replace(
            "n = 3                    # three is enough", "n = 2"
        ),
    )
    commented = TEXT.replace("n = 3                    # three is enough", '# n = 3\n\n# [env]\n# LEVEL = "x"')
    assert '[evaluation]\ngroup_by = ["kind"]\n' in _set(folder, commented)
    assert 'required = ["A", "B"]' in set_in(folder, "secrets.required", '["A", "B"]')


def _set(folder: GitWorkspace, text: str) -> str:
    file = file_of(folder, text)
    set_values(file, Workspace(folder.root), {"evaluation.group_by": '["kind"]'})
    return file.path.read_text("utf-8")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("evaluation.n", "0", "1 problem"),
        ("evaluation.n", "many", "1 problem"),
        ("experiment.rollout", "nothing", "1 problem"),
        ("experiment.commit_sha", "xyz", "1 problem"),
        ("env.lower", "x", "1 problem"),
        ("evaluation.nn", "3", "there is no key evaluation.nn"),
        ("n", "3", "is not of the form table.key"),
        ("zebra.n", "3", "there is no key zebra.n"),
        ("advanced.resources.cpuz", "3", "there is no key advanced.resources.cpuz"),
    ],
)
def test_a_wrong_value_leaves_the_file_alone(folder: GitWorkspace, key: str, value: str, message: str) -> None:
    file = file_of(folder)
    with pytest.raises(ValidationError, match=message):
        set_values(file, Workspace(folder.root), {key: value})
    assert file.path.read_text("utf-8") == TEXT
    assert sorted(p.name for p in file.path.parent.iterdir()) == ["multiply.toml", "x.toml"]


def test_a_broken_file_can_be_repaired_by_setting_the_wrong_key(folder: GitWorkspace) -> None:
    file = file_of(folder, TEXT.replace("n = 3 ", "n = 0 "))
    set_values(file, Workspace(folder.root), {"evaluation.n": "2"})
    assert check_file(file, Workspace(folder.root))[1] == []


def test_no_toml_cannot_be_edited(folder: GitWorkspace) -> None:
    with pytest.raises(ValidationError, match="1 problem"):
        set_values(file_of(folder, "x = [\n"), Workspace(folder.root), {"evaluation.n": "2"})


def test_resolved_names_the_source_of_every_value(folder: GitWorkspace) -> None:
    rows = {row["key"]: row for row in list_values(file_of(folder), Workspace(folder.root))}
    assert rows["evaluation.n"] == {"key": "evaluation.n", "value": 3, "source": "configs/eval/x.toml:11"}
    assert rows["evaluation.batch_size"] == {"key": "evaluation.batch_size", "value": 1, "source": "default"}
    assert rows["evaluation.limit"] == {"key": "evaluation.limit", "value": None, "source": "not set"}
    assert rows["secrets.required"]["source"] == "configs/eval/x.toml:14"


def test_resolved_of_a_training_config_without_secrets(folder: GitWorkspace) -> None:
    text = TEXT.split("[evaluation]")[0].replace("eval.schema", "training.schema")
    rows = {row["key"]: row for row in list_values(file_of(folder, text, "training"), Workspace(folder.root))}
    assert rows["training.lr"]["value"] == 1e-5
    assert "secrets.required" not in rows


def test_permissions_stay(folder: GitWorkspace) -> None:
    file = file_of(folder)
    Path(file.path).chmod(0o640)
    set_values(file, Workspace(folder.root), {"evaluation.n": "2"})
    assert file.path.stat().st_mode & 0o777 == 0o640
