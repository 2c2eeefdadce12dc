"""Every spelling that an older version or a published client knows still parses."""

from __future__ import annotations

import pytest

from osmosis.cli.core.app import respell
from osmosis.cli.main import COMMANDS, EVAL
from support.command_reference import why_wrong

OLD = """
auth login --token x
auth logout --yes
auth whoami
eval -m a:b -d d.jsonl --model x --eval-fn a:f --n 2 --batch-size 3 --max-turns 4 -o o.json -q --debug
eval -m a:b -d d.jsonl --model x --agent-timeout 1 --score-timeout 1 --model-timeout 1 --tool-timeout 1 --run-timeout 1
eval -m a:b -d d.jsonl --model x --max-retries 1 --rate-limit-budget 1 --breaker-after 1 --max-tokens-total 5
eval -m a:b -d d.jsonl --max-tokens-per-rollout 1 --max-cost-per-rollout 1 --max-time-per-rollout 1
eval -m a:b -d d.jsonl --max-turns-per-rollout 1 --max-messages-per-rollout 1 --sandbox none --sandbox-image x
eval -m a:b -d d.jsonl --baseline-model b --baseline-base-url http://h/v1 --k 2 --score-range 0,5 --top-p 0.9
eval -m a:b -d d.jsonl --skip-bad-rows --require-ground-truth --secret X --server-key-env Y --concurrency auto
eval set nightly --name tuesday --baseline monday --fail-on-regression --secrets-file s --on http://h --yes
eval run c.toml --dataset-file d.jsonl --rows 3 --max-in-flight 2 --retry-failed --secrets-file s --upload --yes
eval run c.toml --fresh --rollout-port 1 --listener-port 2 --advertise-url http://h --verbose
eval tag r nightly --remove old
eval note r text
eval rename r new
eval pin r --undo
eval report r --html --md --junit --reduce mean --group-by level -o -
eval upload r --replace
platform doctor --database-url x
train info r -o f --overwrite
rollout init x --force
rollout list --limit 3 --branch main
rollout list --all
template apply multiply --force
quickstart --workspace demo
quickstart -w demo
validate -m a:b --verbose
eval info r -o f
eval report
eval bisect good bad --rows 3
eval retry r --max-cost 20 --max-tokens-total 5 --yes --secrets-file s
eval priority r 10
train priority r -- -10
train retry r --yes
train metrics r -o f
train checkpoints r
model info m
platform audit --by ada --limit 5
platform quota demo --runs 4 --rollouts 64 --storage 50GB
platform user remove ada --give-to grace
platform user unlink ada --yes
workspace invite ada --role viewer
workspace role ada admin
workspace remove ada --yes
workspace current
workspace webhook
dataset info d
dataset preview d --rows 3
dataset validate d.jsonl
dataset logs d
config check x.toml
config schema training --write
sync status
template check
token revoke ci
worker drain x
worker remove x --yes
eval history --rollout r --model m --dataset d --tag t
preview --path f.yaml
eval-rubric --rubric r --data d.jsonl
worker token create --name x
worker token list
worker token revoke x
benchmark runs list --limit 3
benchmark runs show r -o f
benchmark runs download r --type all --yes
benchmark info b
eval quarantine add r:1 --reason flaky
eval quarantine delete r:1
eval quarantine list
secret check c.toml
template list
upgrade
""".strip().splitlines()


@pytest.mark.parametrize("line", OLD)
def test_an_older_spelling_parses(line: str) -> None:
    assert why_wrong(f"osmosis {line}") is None


@pytest.mark.parametrize("line", ["eval -m a:b --no-such-flag", "eval tag", "auth sign-in"])
def test_a_wrong_line_is_told_apart(line: str) -> None:
    assert why_wrong(f"osmosis {line}") is not None


def test_lists_show_one_spelling() -> None:
    assert not {"tag", "note", "rename", "pin", "set", "report", "bisect"} & set(EVAL.commands)
    assert COMMANDS["auth"].hidden


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("eval tag r nightly --remove old", "eval edit r --tag=nightly --remove-tag=old"),
        ("eval pin r --undo", "eval edit r --unpin"),
        ("eval priority r -- -10", "eval edit r --priority=-10"),
        ("eval retry r --yes", "eval resume platform:r --yes"),
        ("eval tag --help", "eval edit --help"),
        ("platform quota demo --runs 4 --storage=1GB", "workspace quota demo --set=runs=4 --set=storage=1GB"),
        ("worker token create --name gpu-box", "token create gpu-box --scope worker"),
        ("workspace role ada admin", "workspace members ada --role=admin"),
        ("template apply multiply --force", "rollout new multiply --force --template multiply"),
        ("eval show r", "eval show r"),
    ],
)
def test_an_older_spelling_becomes_todays(old: str, new: str) -> None:
    assert respell(old.split()) == new.split()
