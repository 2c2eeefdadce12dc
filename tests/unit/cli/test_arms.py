"""Keys of a config by `--set`, and what an arm of `eval decide` may vary."""

from pathlib import Path

import pytest

from osmosis.cli.eval.plan import apply_changes, read_arms
from osmosis.errors import UsageError
from osmosis.records.config.run_config import EvalConfig

CONFIG = EvalConfig.model_validate(
    {
        "experiment": {"rollout": "r", "entrypoint": "main.py", "dataset": "d", "model_path": "m"},
        "secrets": {"required": []},
    }
)


def test_values_are_those_of_the_config() -> None:
    changed = apply_changes(
        CONFIG, ["env.LEVEL=1", "env.FORM=a=b", "evaluation.n=3", "advanced.params.temperature=0.5"]
    )
    assert changed.env == {"LEVEL": "1", "FORM": "a=b"}
    assert changed.advanced.params == {"temperature": 0.5}
    assert changed.evaluation.n == 3
    assert apply_changes(changed, []) == changed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("env.X", "--set 'env.X' is not KEY=VALUE"),
        ("evaluation.nope=3", "evaluation.nope: unknown key nope"),
        ("evaluation.n=x", 'evaluation.n: "x" is text'),
        ("evaluation.n.x=1", "evaluation.n: "),
        ("advanced.nope=1", "advanced.nope: "),
    ],
)
def test_a_wrong_one_is_named(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        apply_changes(CONFIG, [text])
    assert caught.value.message.startswith(message)
    assert caught.value.hint


def test_an_arm_is_a_variable_only_where_the_rollout_reads_it(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text('TOOLS = []\nlevel = os.environ["LEVEL"]\n')
    _, arms = read_arms([], ["level=low,high"], CONFIG, tmp_path)
    assert arms["level=high"] == {"env.LEVEL": "high"}
    with pytest.raises(UsageError, match="reads TOOLS"):
        read_arms([], ["tools=on,off"], CONFIG, tmp_path)
