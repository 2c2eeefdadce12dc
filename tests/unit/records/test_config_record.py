"""What a config may say, checked on the record itself, and what a training config comes to."""

import datetime
from typing import Any

import pytest
import tomlkit
from pydantic import ValidationError

from osmosis.records.config.advanced import EvalAdvanced
from osmosis.records.config.check import CONFIGS, check_config, find_unread_keys, iterate_fields, list_issues
from osmosis.records.config.experiment import Experiment
from osmosis.records.config.run_config import EvalConfig, Secrets, TrainingConfig
from osmosis.records.run.plan import EvalPlan, Selection
from osmosis.records.run.source import SnapshotNote
from osmosis.records.run.training import plan_training, split_rows

EXPERIMENT = {"rollout": "multiply", "entrypoint": "main.py", "model_path": "openai/gpt-5-mini", "dataset": "multiply"}
PROGRAM = {**{key: value for key, value in EXPERIMENT.items() if key != "entrypoint"}, "command": "codex"}


def eval_config(**tables: Any) -> EvalConfig:
    return EvalConfig.model_validate({"experiment": EXPERIMENT, "secrets": {"required": []}, **tables})


def test_omitted_keys_take_the_documented_defaults() -> None:
    config = eval_config()
    assert config.evaluation.limit is None
    assert (config.evaluation.n, config.evaluation.batch_size, config.evaluation.pass_threshold) == (1, 1, 1.0)
    assert (config.evaluation.agent_workflow_timeout_s, config.evaluation.grader_timeout_s) == (450, 150)
    training = TrainingConfig.model_validate({"experiment": EXPERIMENT}).training
    assert (training.lr, training.total_epochs, training.n_samples_per_prompt) == (1e-5, 1, 8)
    assert (training.rollout_batch_size, training.max_prompt_length, training.max_response_length) == (32, 8192, 8192)


def test_secrets_are_mandatory_for_eval_and_optional_for_training() -> None:
    with pytest.raises(ValidationError, match="secrets"):
        EvalConfig.model_validate({"experiment": EXPERIMENT})
    assert TrainingConfig.model_validate({"experiment": EXPERIMENT}).secret_names() == []
    with pytest.raises(ValidationError, match="required"):
        TrainingConfig.model_validate({"experiment": EXPERIMENT, "secrets": {}})


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"evaluation": {"n": "x"}}, "valid integer"),
        ({"evaluation": {"n": 0}}, "greater than or equal to 1"),
        ({"evaluation": {"nn": 3}}, "Extra inputs"),
        ({"evaluation": {"pass_threshold": float("nan")}}, "finite"),
        ({"experiment": {**EXPERIMENT, "rollout": "../other"}}, "one directory name"),
        ({"experiment": {**EXPERIMENT, "entrypoint": "../main.py"}}, "inside the rollout"),
        ({"experiment": {**EXPERIMENT, "entrypoint": "/etc/passwd"}}, "inside the rollout"),
        ({"experiment": {**EXPERIMENT, "commit_sha": "xyz"}}, "7 to 40 hexadecimal"),
        ({"experiment": {**EXPERIMENT, "commit_sha": "abc1234", "branch": "main"}}, "cannot be used together"),
        ({"experiment": {**EXPERIMENT, "branch": "a b"}}, "without whitespace"),
        ({"env": {"lower": "x"}}, "not a variable name"),
        ({"env": {"TRAILING\n": "x"}}, "not a variable name"),
        ({"env": {"_OSMOSIS_X": "x"}}, "reserved"),
        ({"env": {"A": 1}}, "valid string"),
        ({"secrets": {"required": ["lower"]}}, "not a secret name"),
        ({"secrets": {"required": ["A", "A"]}}, "A is listed twice"),
        ({"secrets": {"required": ["A"]}, "env": {"A": "x"}}, "is in both"),
        ({"advanced": {"base_url": "ftp://x"}}, "start with http"),
        ({"advanced": {"api_key_env": "KEY"}}, "KEY must be listed"),
        ({"kind": "eval"}, "Extra inputs"),
        ({"experiment": {**EXPERIMENT, "entrypoint": None}}, "entrypoint or command is missing"),
        ({"experiment": {**EXPERIMENT, "command": "codex"}}, "entrypoint and command cannot be used together"),
        ({"experiment": {**EXPERIMENT, "grader": "main.py"}}, "grader has no effect without command"),
        ({"experiment": {**PROGRAM, "grader": "../main.py"}}, "inside the rollout"),
        ({"experiment": {**PROGRAM, "command": []}}, "at least 1"),
        ({"program": {"folder": "folder"}}, "no effect without command"),
        ({"experiment": PROGRAM, "program": {"env": ["TOKEN"]}}, "TOKEN must be listed"),
    ],
)
def test_what_a_config_must_not_say(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        eval_config(**tables)


def test_a_command_is_words_or_a_line() -> None:
    words = ["claude", "-p", "$PROMPT", "in the $(pwd)", 'say "hi"']
    config = eval_config(experiment={**PROGRAM, "command": words}, env={"MODE": "x"})
    assert config.experiment.agent == 'command:claude -p "$PROMPT" "in the \\$(pwd)" "say \\"hi\\""'
    plan = EvalPlan.from_config(config, name="n", dataset="d")
    assert (plan.agent, plan.program.grader) == (config.experiment.agent, "rollouts/multiply/main.py")
    assert plan.program.environ == ["MODE"]
    assert eval_config(experiment=PROGRAM).experiment.agent == "command:codex"


def test_a_trained_program_is_not_elsewhere() -> None:
    servers = {"rollout_servers": ["http://127.0.0.1:9000"]}
    with pytest.raises(ValidationError, match="beside the trainer"):
        TrainingConfig.model_validate({"experiment": PROGRAM, "advanced": servers})


@pytest.mark.parametrize(
    ("advanced", "message"),
    [
        ({"sealed": "../sealed.py"}, "inside the rollout"),
        ({"sealed": "sealed.py", "validation_rows": 0}, "no effect with validation_rows = 0"),
        ({"sealed": "sealed.py", "rollout_servers": ["http://127.0.0.1:9000"]}, "rollout servers are elsewhere"),
    ],
)
def test_a_sealed_grader_needs_rollouts_of_validation_here(advanced: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainingConfig.model_validate({"experiment": EXPERIMENT, "advanced": advanced})


def test_advanced_keeps_unknown_keys_and_says_which() -> None:
    config = eval_config(advanced={"backend_flag": 3, "base_ur": "x", "lora_rank": 8})
    assert config.to_dict()["advanced"]["backend_flag"] == 3
    found = {issue.key: issue for issue in find_unread_keys(config)}
    assert set(found) == {"advanced.backend_flag", "advanced.base_ur", "advanced.lora_rank"}
    assert found["advanced.base_ur"].near == "advanced.base_url"
    assert found["advanced.lora_rank"].fix == "remove it: lora_rank belongs in training configs"


def test_a_request_with_a_key_that_nothing_reads_is_refused() -> None:
    body = {"experiment_config": EXPERIMENT, "advanced_config": {"lora_rnk": 8}}
    with pytest.raises(ValidationError) as caught:
        TrainingConfig.from_request(body)
    assert [(i.key, i.near) for i in list_issues(TrainingConfig, caught.value)] == [
        ("advanced.lora_rnk", "advanced.lora_rank")
    ]


@pytest.mark.parametrize(
    ("tables", "key", "words"),
    [
        (
            {"advanced": {"loss": "rejection", "clip": 0.1}},
            "advanced.clip",
            "clip has no effect without another loss than rejection",
        ),
        ({"advanced": {"loss": "ppo"}}, "advanced.loss", '"ppo" is not one of "grpo", "dr_grpo", "dapo"'),
        ({"advanced": {"lora_rank": 0}}, "advanced.lora_rank", "from 1 to 512"),
        ({"advanced": {"engine": "tinker"}}, "advanced.base_url", "base_url is missing"),
        ({"advanced": {"base_url": "http://x"}}, "advanced.base_url", 'no effect without engine = "tinker"'),
        ({"advanced": {"method": "sft"}}, "advanced.from_run", "from_run is missing"),
        ({"advanced": {"method": "dpo"}}, "advanced.from_run", "from_run is missing"),
        ({"advanced": {"method": "sft", "from_run": "a-1", "beta": 1}}, "advanced.beta", 'without method = "dpo"'),
        ({"advanced": {"loss": "distill"}}, "advanced.teacher", "teacher is missing"),
        ({"advanced": {"teacher": "a/b"}}, "advanced.teacher", 'no effect without loss = "distill"'),
        (
            {"advanced": {"loss": "distill", "teacher": "a/b", "scale_rewards": "none"}},
            "advanced.scale_rewards",
            "no effect without another loss than distill",
        ),
        ({"advanced": {"shard": True}}, "advanced.shard", 'shard = true needs sampler = "vllm"'),
        ({"advanced": {"min_score": 1.0}}, "advanced.min_score", 'no effect without method = "sft"'),
        ({"advanced": {"method": "sft", "from_run": "a-1", "kl": 0.1}}, "advanced.kl", 'without method = "grpo"'),
        ({"advanced": {"lora_targets": []}}, "advanced.lora_targets", "not empty"),
        ({"training": {"n_samples_per_prompt": 1}}, "training.n_samples_per_prompt", "nothing to be compared with"),
        ({"sampling": {"rollout_temperature": 0}}, "sampling.rollout_temperature", "all the same"),
        ({"checkpoints": {"keep": 0}}, "checkpoints.keep", "1 or more"),
    ],
)
def test_what_a_training_config_must_not_say(tables: dict[str, Any], key: str, words: str) -> None:
    config, issues = check_config("training", {"experiment": EXPERIMENT, **tables})
    assert config is None
    found = {issue.key: issue.what for issue in issues}
    assert words in found[key], issues


def test_a_stored_training_config_reads_like_its_file() -> None:
    for advanced in ({}, {"method": "sft", "from_run": "a-1"}, {"engine": "tinker", "base_url": "http://x"}):
        config = TrainingConfig.model_validate({"experiment": EXPERIMENT, "advanced": advanced})
        assert TrainingConfig.model_validate(config.to_dict()) == config


def test_the_snapshot_of_a_submit_is_read_where_earlier_clients_put_it_too() -> None:
    note = {"parent": "abc", "files": ["a.py"], "diff": "x" * 300_000}
    for body in ({"snapshot": note}, {"advanced_config": {"snapshot": note}}):
        rest, read = SnapshotNote.of_request(body)
        assert (read.parent, read.files, len(read.diff)) == ("abc", ["a.py"], 200_000)
        assert "snapshot" not in str(rest)
    assert SnapshotNote.of_request({"advanced_config": {"params": {}}}) == ({"advanced_config": {"params": {}}}, None)


EVERYTHING_WRONG = {
    "experiment": {**EXPERIMENT, "rollout": "../x", "branch": "a b", "commit_sha": "abc1234"},
    "evaluation": {"n": 0, "limitt": 3},
    "env": {"lower": "x", "A": "1", "PORT": 80},
    "secrets": {"required": ["A", "B", "B", "b", 3]},
    "advanced": {"base_url": "ftp://x", "api_key_env": "KEY"},
    "sampling": {},
}


def test_no_problem_hides_another() -> None:
    config, issues = check_config("eval", EVERYTHING_WRONG)
    assert config is None
    assert [issue.key for issue in issues] == [
        "env.A",
        "advanced.api_key_env",
        "experiment.commit_sha",
        "experiment.rollout",
        "experiment.branch",
        "advanced.base_url",
        "env.lower",
        "env.PORT",
        "evaluation.n",
        "evaluation.limitt",
        "secrets.required",
        "secrets.required",
        "secrets.required",
        "sampling",
    ]
    assert all(issue.fix and issue.what for issue in issues)


def test_a_request_is_refused_in_the_words_of_the_file() -> None:
    _, of_file = check_config("eval", EVERYTHING_WRONG)
    body = {f"{table}_config": held for table, held in EVERYTHING_WRONG.items() if table not in ("secrets", "sampling")}
    with pytest.raises(ValidationError) as caught:
        EvalConfig.from_request({**body, "secrets": EVERYTHING_WRONG["secrets"], "evaluation": {"n": 3}})
    of_request = list_issues(EvalConfig, caught.value)
    assert [issue for issue in of_file if issue.key != "sampling"] == of_request[1:]
    assert (of_request[0].key, of_request[0].near) == ("evaluation", "evaluation_config")


def test_a_config_arrives_as_it_was_submitted() -> None:
    config = eval_config(
        evaluation={"limit": 3, "n": 2},
        env={"LEVEL": "1"},
        secrets={"required": ["KEY"]},
        advanced={"api_key_env": "KEY"},
    )
    body = config.to_request({"KEY": "value"})
    assert body.keys() == {"experiment_config", "evaluation_config", "advanced_config", "env_config", "secrets"}
    assert EvalConfig.from_request(body) == (config, {"KEY": "value"})
    training = TrainingConfig.model_validate({"experiment": EXPERIMENT, "training": {"lr": 1e-5}})
    assert TrainingConfig.from_request(training.to_request())[0].training == training.training
    assert "value" not in str(config.to_request())


def test_secret_values_of_a_request_name_required_secrets() -> None:
    config, given = EvalConfig.from_request({"experiment_config": EXPERIMENT, "secrets": {"provided": {"KEY": "v"}}})
    assert (config.secret_names(), given) == (["KEY"], {"KEY": "v"})


def test_rules_over_tables_read_records_too() -> None:
    made = {"experiment": Experiment(**EXPERIMENT), "advanced": EvalAdvanced(api_key_env="KEY")}
    assert EvalConfig(**made, secrets=Secrets(required=["KEY"])).secret_names() == ["KEY"]
    with pytest.raises(ValidationError, match="KEY must be listed"):
        EvalConfig(**made, secrets=Secrets(required=[]))


def test_a_plan_says_what_its_config_says_and_what_is_given_wins() -> None:
    config = eval_config(
        secrets={"required": ["KEY"]},
        evaluation={"limit": 7, "n": 3, "batch_size": 9, "pass_threshold": 0.5, "agent_workflow_timeout_s": 5},
        advanced={"base_url": "http://localhost:8000/v1/", "api_key_env": "KEY", "params": {"top_p": 0.5}},
    )
    plan = EvalPlan.from_config(config, name="a", dataset="d.jsonl")
    model = plan.model
    assert (model.kind, model.base_url, model.api_key_env) == ("openai", "http://localhost:8000/v1", "KEY")
    assert model.params == {"top_p": 0.5}
    assert (plan.selection.limit, plan.attempts, plan.concurrency, plan.pass_threshold) == (7, 3, 9, 0.5)
    assert (plan.timeouts.agent_s, plan.timeouts.score_s) == (5, 150)
    other = EvalPlan.from_config(config, name="a", dataset="d", attempts=1, selection=Selection(rows=[2]))
    assert (other.attempts, other.selection.rows, other.selection.limit) == (1, [2], None)


def training_config(**tables: Any) -> TrainingConfig:
    return TrainingConfig.model_validate({"experiment": EXPERIMENT, **tables})


def test_a_tenth_is_held_out_and_the_rest_fills_whole_steps() -> None:
    plan = plan_training(training_config(training={"rollout_batch_size": 16, "n_samples_per_prompt": 8}), range(100))
    assert (len(plan.rows), len(plan.validation_rows)) == (90, 10)
    assert not set(plan.rows) & set(plan.validation_rows)
    assert (plan.steps, plan.at_once, plan.validations) == (5, 128, 2)
    assert plan.rollouts == 5 * 128 + 2 * 10, "before the first step, and at the end"
    assert plan.replacements == 0
    more = training_config(training={"rollout_batch_size": 16}, advanced={"replace_no_signal": 3})
    assert plan_training(more, range(100)).replacements == 5 * 3 * 8


@pytest.mark.parametrize(
    ("total", "wanted", "held"), [(9, None, 0), (1000, None, 32), (10, 0, 0), (10, 4, 4), (3, 50, 2)]
)
def test_how_many_rows_are_held_out(total: int, wanted: int | None, held: int) -> None:
    training, held_out, _ = split_rows(range(total), wanted, 1)
    assert (len(held_out), len(training)) == (held, total - held)
    assert split_rows(range(total), wanted, 1) == (training, held_out, [])


def test_test_rows_are_never_trained_on_and_leave_the_others_as_they_were() -> None:
    training, validation, test = split_rows(range(100), 10, 1, 20)
    assert sorted(training + validation + test) == list(range(100))
    assert (validation, len(test)) == (split_rows(range(100), 10, 1)[1], 20)
    assert len(split_rows(range(4), 1, 1, 50)[0]) == 1


def test_the_seed_draws_other_rows() -> None:
    assert split_rows(range(100), 10, 1) != split_rows(range(100), 10, 2)


def test_steps_end_with_the_epochs_or_before() -> None:
    training = {"rollout_batch_size": 10, "total_epochs": 3}
    assert plan_training(training_config(training=training), range(100)).steps == 27
    early = plan_training(training_config(training=training, advanced={"max_steps": 12}), range(100))
    assert (early.steps, early.validations) == (12, 3)
    assert plan_training(training_config(training={"rollout_batch_size": 200}), range(100)).steps == 0


@pytest.mark.parametrize("kind", CONFIGS)
def test_what_to_type_instead_is_toml_of_the_right_type(kind: str) -> None:
    fixes = 0
    for table, record, _ in iterate_fields(CONFIGS[kind]):
        for key in record.model_fields if record else ():
            for wrong in (datetime.date(2026, 1, 1), "no such choice", [[1]]):
                for issue in check_config(kind, {table: {key: wrong}})[1]:
                    if issue.key == f"{table}.{key}" and issue.fix.startswith(f"{key} = "):
                        written = {table: tomlkit.parse(issue.fix).unwrap()}
                        left = [i for i in check_config(kind, written)[1] if i.key == issue.key]
                        assert not any("expected" in other.what for other in left), issue
                        fixes += 1
    assert fixes > 60


def test_one_message_for_a_value_that_is_of_none_of_several_types() -> None:
    _, issues = check_config("training", {"experiment": EXPERIMENT, "advanced": {"gradient_checkpointing": "never"}})
    assert [(issue.key, issue.fix) for issue in issues] == [
        ("advanced.gradient_checkpointing", 'gradient_checkpointing = "auto"')
    ]
    assert 'true or false or "auto"' in issues[0].what
