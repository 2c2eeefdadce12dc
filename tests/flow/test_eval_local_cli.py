"""The local eval as people meet it: exit codes, errors before anything is spent, a served rollout, changed inputs."""

import json
import os
import select
import subprocess
import sys

import pytest

from osmosis.cli.main import main
from support.command_line import run_command
from support.endpoint import ModelEndpoint, Reply
from support.eval_project import ROLLOUT, SCORE, write_project, write_rows


@pytest.fixture
def osmosis(tmp_path, capsys):
    """`code, out, err = osmosis("eval ...")` in a folder with an agent, a score function and ten rows."""
    write_project(tmp_path, agent="chat_agent", score="chat_score")
    (tmp_path / "chat_flow.py").write_text(ROLLOUT)
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CI": "1"}

    def call(line, **more):
        code = main(line.split(), environ={**environ, **more}, cwd=tmp_path)
        said = capsys.readouterr()
        return code, said.out, said.err

    call.folder = tmp_path
    return call


BASE = "eval -m chat_agent:agent -d d.jsonl --eval-fn chat_score:exact"
OFFLINE = f"{BASE} --model offline/calculator"


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        (f"{BASE}", 2, "--model"),
        ("eval -d d.jsonl --eval-fn chat_score:exact --model offline/calculator", 2, "no agent given"),
        (f"{OFFLINE} --n 0", 2, "--n must be at least 1"),
        (f"{OFFLINE} --batch-size none", 2, "a number or auto"),
        (f"{OFFLINE} --rows 5-x", 2, "is not a row index"),
        (f"{OFFLINE} --rows 40", 1, "no row 40"),
        (f"{OFFLINE} --temperature 9", 2, "between 0 and 2"),
        (f"{OFFLINE} -o .", 1, "is a folder"),
        (f"{OFFLINE} -o d.jsonl", 1, "would overwrite the dataset"),
        ("eval report --html", 2, "needs the name of a run"),
        (f"{OFFLINE} --secret NOT_SET", 1, "NOT_SET"),
        (f"{OFFLINE} --name ../x", 2, "is not a valid run name"),
        (f"{OFFLINE} stray", 2, "unexpected argument"),
        (f"{OFFLINE} --retry-failed bad_luck", 2, "not a failure category"),
        (f"{OFFLINE} --fail-under 0.99", 1, "--fail-under"),
        (f"{OFFLINE} --no-such-flag", 2, "--no-such-flag"),
        (f"{OFFLINE} --n 5 --k 7", 2, "--k 7 is not between 1 and --n 5"),
        (f"{OFFLINE} --k 0", 2, "--k 0 is not between"),
        (f"{OFFLINE} --score-range 5", 2, "'5' is not MIN,MAX"),
        (f"{OFFLINE} --score-range 5,1", 2, "'5,1' is not MIN,MAX"),
        (f"{OFFLINE} --reduce average", 2, "there is no reducer 'average'"),
        (f"{OFFLINE} --n 2 --reduce at-least-3", 2, "needs at least 3 attempts per row"),
        (f"{OFFLINE} --group-by colour", 1, "no column 'colour' to group by"),
        (f"{OFFLINE} --rows 0-5 --limit 2", 2, "--rows and --limit cannot be used together"),
        (f"{OFFLINE} --rows 0-5 --offset 2", 2, "--rows and --offset cannot be used together"),
        (f"{OFFLINE} --rows=", 2, "is not a row index"),
        (f"{OFFLINE} --name=", 2, "is not a valid run name"),
        (f"{OFFLINE} --secret=", 2, "the name of a variable"),
        (f"{OFFLINE} --agent-timeout 0", 2, "--agent-timeout"),
        (f"{OFFLINE} --run-timeout nan", 2, "--run-timeout"),
        (f"{OFFLINE} --max-retries -1", 2, "--max-retries must be at least 0"),
        (f"{OFFLINE} --max-cost -1", 2, "--max-cost must be above 0"),
        (f"{OFFLINE} --max-tokens-total 0", 2, "--max-tokens-total must be at least 1"),
        (f"{OFFLINE} --price nan,1", 2, "--price must be two finite numbers"),
        (f"{OFFLINE} --limit 0", 2, "--limit must be at least 1"),
        (f"{OFFLINE} --offset -1", 2, "--offset must be at least 0"),
        (f"{OFFLINE} --k 99", 2, "--k 99 is not between 1 and --n 1"),
        (f"{OFFLINE} --batch-size 0", 2, "--batch-size must be at least 1"),
        (f"{OFFLINE} --sample 0%", 2, "--sample must be above 0"),
        (f"{OFFLINE} --pass-threshold nan", 2, "--pass-threshold"),
        (f"{OFFLINE} --top-p 2", 2, "--top-p must be above 0"),
        (f"{OFFLINE} --max-tokens 0", 2, "--max-tokens must be at least 1"),
        (f"{OFFLINE} --max-turns-per-rollout 0", 2, "--max-turns-per-rollout must be at least 1"),
        (f"{OFFLINE} --sandbox jail", 2, "--sandbox jail is not one of auto, bubblewrap, container, none"),
        (f"{OFFLINE} --sandbox container", 2, "--sandbox container needs --sandbox-image"),
        (f"{OFFLINE} --sandbox none --sandbox-image x", 2, "--sandbox-image would not be used"),
        (f"{OFFLINE} --max-cost-per-rollout nan", 2, "--max-cost-per-rollout must be a finite"),
        (f"{OFFLINE} --breaker-after 0", 2, "--breaker-after"),
        (f"{OFFLINE} --rate-limit-budget -1", 2, "--rate-limit-budget"),
        (f"{OFFLINE} --rate-limit-budget nan", 2, "--rate-limit-budget"),
        (f"{OFFLINE} --fail-under nan", 2, "--fail-under must be a finite number"),
        (f"{OFFLINE} --baseline-base-url http://127.0.0.1:9/v1", 2, "--baseline-base-url needs --baseline-model"),
        (f"{OFFLINE} --base-url http://127.0.0.1:9/v1", 2, "--base-url would not be used"),
        (f"{OFFLINE} --param n=3", 2, "use --n"),
        (f"{BASE} --model m --base-url http://127.0.0.1:99999/v1", 2, "not an http URL"),
        ("eval --server http://127.0.0.1:99999 -d d.jsonl --model offline/calculator", 2, "not an http URL"),
        ("eval --mcp http:///x -d d.jsonl --eval-fn chat_score:exact --model offline/calculator", 2, "not an http URL"),
        (f"{OFFLINE} --temperature 1 --param temperature=0.2", 2, "given twice"),
        (f"{OFFLINE} --replay r", 2, "--model would not be used"),
        (f"{OFFLINE} --server-key-env KEY", 2, "needs --server"),
        (f"{OFFLINE} --baseline=", 2, "the model name is empty"),
        (f"{OFFLINE} --grader chat_flow:Exact", 1, "Exact would not be used"),
        ("eval -m chat_agent:agent -d d.jsonl --model offline/calculator", 2, "no score function or grader"),
        ("eval -m chat_agent:agnt -d d.jsonl --eval-fn chat_score:exact --model x", 1, "did you mean chat_agent:agent"),
        ("eval -m chat_agent:agent -d no.jsonl --eval-fn chat_score:exact --model x", 1, "no such dataset file"),
        (f"{BASE} --model nobody/knows --max-cost 1", 1, "price of nobody/knows is unknown"),
        ("eval resume nothing", 1, "no run 'nothing'"),
        (
            "eval -m chat_agent:agent -d d.jsonl --eval-fn chat_score:exact --model offline/poet",
            1,
            "offline/calculator",
        ),
    ],
)
def test_wrong_lines_say_what_to_type(osmosis, line, code, words):
    found, out, err = osmosis(line)
    assert found == code, err
    assert words in out + err
    assert "Traceback" not in err


@pytest.mark.parametrize(("status", "word"), [(401, "auth"), (404, "model_not_found"), (400, "bad_request")])
def test_a_model_that_cannot_be_used_fails_once_at_once(osmosis, status, word):
    with ModelEndpoint(lambda body, n: Reply({"error": {"message": "[/red] no"}}, status)) as endpoint:
        code, _, err = osmosis(f"{BASE} --model m --base-url {endpoint.url} --json")
    assert code == 1
    assert len(endpoint.requests) == 1
    error = json.loads(err.splitlines()[-1])["error"]
    assert error["details"]["category"] == word
    assert "[/red] no" in error["message"]


@pytest.mark.parametrize("limit", ["--max-tokens-total 50", "--max-cost 1 --price 1,2"])
def test_a_budget_that_cannot_be_kept_is_refused(osmosis, limit):
    """The endpoint does not say what a call uses: every call would count as free."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
    with ModelEndpoint(lambda body, n: Reply({"choices": [choice]})) as endpoint:
        code, _, err = osmosis(f"{BASE} --model m --base-url {endpoint.url} {limit}")
        assert code == 1
        assert "cannot be enforced" in err
        assert len(endpoint.requests) == 1
        assert osmosis(f"{BASE} --model m --base-url {endpoint.url} --limit 1 -q")[0] == 0


def test_a_budget_that_is_used_up_is_said_before_and_the_next_step_goes_on(osmosis):
    assert osmosis(f"{OFFLINE} --name r --max-tokens-total 1 -q")[0] == 1
    code, out, err = osmosis("eval resume r")
    assert code == 1
    assert "of 1 tokens used: no rollout is started" in err
    (step,) = [line for line in out.splitlines() if "continue with a larger budget" in line]
    wanted = int(step.rpartition("--max-tokens-total ")[2])
    code, out, err = osmosis(f"eval resume r --max-tokens-total {wanted}")
    assert (code, "no rollout is started" in err) == (0, False), out


def test_bad_rows_are_all_named_before_anything_is_asked(osmosis):
    with (osmosis.folder / "d.jsonl").open("a") as file:
        file.write('{"user_prompt": ""}\nnot json\n')
    with ModelEndpoint() as endpoint:
        code, _, err = osmosis(f"{BASE} --model m --base-url {endpoint.url}")
        assert code == 1
        assert "line 11" in err
        assert "line 12" in err
        assert endpoint.requests == []
        code, _, _ = osmosis(f"{BASE} --model m --base-url {endpoint.url} --skip-bad-rows")
        assert code == 0


def test_when_everything_fails_the_exit_code_says_so(osmosis):
    with ModelEndpoint(lambda body, n: Reply("boom", 500) if n else None) as endpoint:
        code, out, _ = osmosis(f"{BASE} --model m --base-url {endpoint.url} --max-retries 0 --limit 5")
    assert code == 1
    assert "model: server error" in out
    assert "--retry-failed" in out


def test_when_every_score_fails_the_exit_code_says_so(osmosis):
    (osmosis.folder / "chat_score.py").write_text(SCORE.replace("1.0 if", "float('nan') if True or"))
    code, out, _ = osmosis(OFFLINE)
    assert code == 1
    assert "score: invalid score" in out


def test_failed_rollouts_are_run_again_on_demand(osmosis):
    with ModelEndpoint(lambda body, n: Reply("boom", 500) if n in (2, 3) else None) as endpoint:
        line = f"{BASE} --model m --base-url {endpoint.url} --max-retries 0 --name r"
        assert osmosis(f"{line} -q")[0] == 0
        assert osmosis("eval report r")[0] == 0, "single failed rollouts are data, no failed command"
        assert osmosis("eval resume r --fail-under 1.0 -q")[0] == 1, "and they do not pass"
        asked = len(endpoint.requests)
        code, out, err = osmosis("eval resume r --retry-failed server_error --json")
    assert code == 0, err
    summary = json.loads(out)["data"]["summary"]
    assert (summary["completed_runs"], summary["failed"]) == (10, 0)
    assert len(endpoint.requests) == asked + 1 + 2  # the probe and the two


def test_a_bar_is_held_against_the_rows_that_are_not_in_quarantine(osmosis):
    assert osmosis(f"{OFFLINE} --name r --fail-under 1.0 -q")[0] == 1
    rows = [json.loads(line) for line in (osmosis.folder / ".osmosis/runs/r/rollouts.jsonl").read_text().splitlines()]
    missed = [row["row_index"] for row in rows if not next(iter(row["scores"].values()))["value"]]
    for row in missed:
        assert osmosis(f"eval quarantine add r:{row} --reason flaky")[0] == 0
    code, out, err = osmosis("eval resume r --fail-under 1.0 --json")
    assert code == 0, err
    data = json.loads(out)["data"]
    assert (data["quarantine"]["without"]["pass_rate"], data["summary"]["completed_runs"]) == (1.0, 10)
    for row in missed:
        assert osmosis(f"eval quarantine delete r:{row}")[0] == 0
    assert osmosis("eval resume r --fail-under 1.0 -q")[0] == 1


def test_a_changed_score_function_is_shown_and_agreed_to(osmosis):
    line = f"{OFFLINE} --name r -q"
    assert osmosis(line)[0] == 0
    (osmosis.folder / "chat_score.py").write_text(SCORE.replace("1.0 if", "1.0 / 2 if"))
    del sys.modules["chat_score"]  # a person's next command is a new process
    code, _, err = osmosis(line)
    assert code == 1
    assert "0 kept, 10 to score again, 0 to run again (score changed: chat_score.py)" in err
    code, out, err = osmosis(f"{OFFLINE} --name r --yes --json")
    assert code == 0, err
    figures = json.loads(out)["data"]["summary"]["eval_fns"]["chat_score:exact"]
    assert figures["max"] == 0.5


def test_a_regrade_uses_edited_rows_openly_and_refuses_other_prompts(osmosis):
    path = osmosis.folder / "d.jsonl"
    assert osmosis(f"{OFFLINE} --name r -q")[0] == 0
    before = path.read_text()
    path.write_text(before.replace('"ground_truth": "63"', '"ground_truth": "none"'))
    code, out, err = osmosis("eval regrade r --json")
    assert code == 0, err
    data = json.loads(out)["data"]
    assert (data["regraded"], data["edited"]) == (10, 1)
    assert data["summary"]["eval_fns"]["chat_score:exact"]["passed"] <= 9
    assert osmosis("eval regrade r")[1].startswith("10 rollouts scored again\n")
    for edited in (before.replace("What is 3", "What was 3"), "".join(before.splitlines(True)[:4])):
        path.write_text(edited)
        code, _, err = osmosis("eval regrade r --json")
        assert code == 1
        assert "rows that have changed or are gone" in err
    path.write_text(before)
    assert osmosis("eval regrade r -q")[0] == 0


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with the run `r`, for tests that leave it as it is."""
    folder = tmp_path_factory.mktemp("finished")
    write_project(folder, agent="chat_agent", score="chat_score")
    assert run_command(*f"{OFFLINE} --name r -q".split(), cwd=folder).code == 0
    return folder


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("eval regrade r --pass-threshold nan", 2, "--pass-threshold must be a finite number"),
        ("eval resume r --run-timeout 0", 2, "--run-timeout must be above 0"),
        ("eval resume r --max-cost 0", 2, "--max-cost must be above 0"),
        ("eval resume r --fail-under nan", 2, "--fail-under must be a finite number"),
        ("eval resume r timeout", 2, "--retry-failed"),
        ("eval resume r --retry-failed bad_luck", 2, "not a failure category"),
        ("eval compare r r --margin nan", 2, "--margin must be 0 or greater"),
        ("eval compare r r --flips -1", 2, "'--flips': Input should be greater than or equal to 0"),
        ("eval compare r r --score none", 1, "scores: chat_score:exact"),
        ("eval report r --html --md", 2, "cannot be used together"),
        ("eval report r -o x.txt", 2, "-o needs --html"),
        ("eval report r --html -o .", 1, "is a folder"),
        ("eval report r --html -o d.jsonl/x.html", 1, "d.jsonl"),
    ],
)
def test_wrong_lines_about_a_run_leave_it_as_it_is(finished, line, code, words):
    folder = finished / ".osmosis" / "runs" / "r"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    run = run_command(*line.split(), cwd=finished)
    assert run.code == code, run.err
    assert words in run.err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


RICH = """
from osmosis import Score, score_function, vote

@score_function(min=0, max=10)
def two(solution_str, ground_truth, extra_info=None):
    right = str(ground_truth) in solution_str
    return {"right": Score(10 * right, f"looked for {ground_truth}", parts={"digits": len(solution_str)}), "kept": 7}

def ten(solution_str, ground_truth, extra_info=None):
    return 10 if str(ground_truth) in solution_str else 3

both = vote(lambda solution_str, ground_truth, extra_info: True, ten, by="max")
"""


def test_named_scores_reasons_and_scales_reach_report_and_pages(osmosis):
    (osmosis.folder / "marks.py").write_text(RICH)
    line = "eval -m chat_agent:agent -d d.jsonl --model offline/calculator --eval-fn marks:two --eval-fn marks:both"
    code, out, err = osmosis(f"{line} --name r -o r.json")
    assert code == 0, err
    found = json.loads((osmosis.folder / "r.json").read_text())
    assert list(found["summary"]["eval_fns"]) == ["marks:two.right", "marks:two.kept", "marks:both"]
    assert found["summary"]["eval_fns"]["marks:two.kept"]["bounds"] == [0, 10]
    assert found["summary"]["eval_fns"]["marks:both"]["mean_ci"] is None
    assert "no interval: declare score_min" in out
    assert set(found["rows"][0]["pass_rate"]) == {"marks:two.right", "marks:two.kept", "marks:both"}
    assert osmosis("eval report r --html -o r.html")[0] == 0
    page = (osmosis.folder / "r.html").read_text()
    assert "looked for" in page
    assert "digits" in page
    code, out, err = osmosis(f"--json {line} --name ranged --score-range 0,10")
    assert code == 0, err
    assert json.loads(out)["data"]["summary"]["eval_fns"]["marks:both"]["mean_ci"][1] <= 10
    assert osmosis("eval regrade r --eval-fn chat_score:exact")[0] == 0
    assert osmosis("eval compare r ranged")[0] == 1  # no score in common


def test_figures_of_attempts_and_by_column_at_once_or_afterwards(osmosis):
    columns = "--reduce median --reduce at-least-2 --group-by ground_truth"
    code, out, err = osmosis(f"{OFFLINE} --name r --n 3 {columns} -o r.json")
    assert code == 0, err
    assert "exact by ground_truth" in out
    assert "at-least-2 of attempts" in out
    summary = json.loads((osmosis.folder / "r.json").read_text())["summary"]
    assert set(summary["eval_fns"]["chat_score:exact"]["reduced"]) == {"median", "at-least-2"}
    assert sum(group["rows"] for group in summary["groups"]) == 10
    assert osmosis(f"{OFFLINE} --name plain --n 3 -q")[0] == 0
    code, out, err = osmosis(f"--json eval report plain {columns}")
    assert code == 0, err
    later = json.loads(out)["data"]["summary"]
    assert [(g["value"], g["rows"]) for g in later["groups"]] == [(g["value"], g["rows"]) for g in summary["groups"]]
    assert later["completed_runs"] == 30
    assert later["stopped"] is None
    assert osmosis("eval report plain --group-by colour")[0] == 1
    assert osmosis("eval report plain --reduce pass@4")[0] == 2


def test_baselines_stand_beside_the_model_in_the_results(osmosis):
    code, out, err = osmosis(f"{OFFLINE} --name r --baseline offline/echo -o r.json")
    assert code == 0, err
    found = json.loads((osmosis.folder / "r.json").read_text())["baselines"]["offline/echo"]
    assert found["summary"]["eval_fns"]["chat_score:exact"]["mean"] == 0.0
    assert found["comparison"]["verdict"] == "better"
    assert "better" in out
    code, _, _ = osmosis("eval compare r r--offline-echo --fail-on-regression")
    assert code == 1


def test_a_baseline_that_cannot_be_used_costs_nothing(osmosis):
    with ModelEndpoint() as ours, ModelEndpoint(lambda body, n: Reply("no such model", 404)) as theirs:
        code, _, err = osmosis(f"{BASE} --model m --base-url {ours.url} --baseline m@{theirs.url} --name r")
    assert code == 1
    assert "no such model" in err
    assert len(ours.requests) <= 1  # the probe
    code, _, err = osmosis(f"{OFFLINE} --name s --max-cost 1 --baseline nobody/knows")
    assert code == 1
    assert "price of nobody/knows is unknown" in err
    assert not (osmosis.folder / ".osmosis" / "runs" / "s").exists()


def test_baselines_of_one_name_are_told_apart(osmosis):
    with ModelEndpoint() as first, ModelEndpoint() as second:
        line = f"{OFFLINE} --name r --baseline m@{first.url} --baseline m@{second.url} -o r.json"
        code, _, err = osmosis(line)
    assert code == 0, err
    beside = json.loads((osmosis.folder / "r.json").read_text())["baselines"]
    assert set(beside) == {"m", f"m@{second.url}"}
    assert {part["name"] for part in beside.values()} == {"r--m", "r--m-2"}


def test_a_baseline_by_two_options(osmosis):
    with ModelEndpoint() as other:
        line = f"{OFFLINE} --name r --baseline-model m --baseline-base-url {other.url} -o r.json"
        code, _, err = osmosis(line)
        assert code == 0, err
        assert len(other.requests) >= 10
    beside = json.loads((osmosis.folder / "r.json").read_text())["baselines"]
    assert [part["name"] for part in beside.values()] == ["r--m"]


def test_debug_writes_what_agents_log(osmosis):
    logged = (
        "messages = list(ctx.request.messages)\n        ctx.log_event('begun', row=ctx.request.metadata['row_index'])"
    )
    loud = (osmosis.folder / "chat_agent.py").read_text().replace("messages = list(ctx.request.messages)", logged)
    (osmosis.folder / "loud_agent.py").write_text(loud)
    line = "eval -m loud_agent:agent -d d.jsonl --eval-fn chat_score:exact --model offline/calculator --limit 3"
    code, _, err = osmosis(f"{line} --debug")
    assert code == 0, err
    traces = list((osmosis.folder / "local_debug").glob("*.jsonl"))
    assert sorted(json.loads(path.read_text())["row"] for path in traces) == [0, 1, 2]
    assert osmosis(line)[0] == 0
    assert len(list((osmosis.folder / "local_debug").glob("*.jsonl"))) == 3


def test_a_baseline_that_breaks_leaves_the_other_results(osmosis):
    with ModelEndpoint(lambda body, n: Reply("no more", 401) if n else None) as theirs:
        line = f"{OFFLINE} --name r --baseline m@{theirs.url} --max-retries 0 -o r.json"
        assert osmosis(line)[0] == 0
    found = json.loads((osmosis.folder / "r.json").read_text())
    assert found["summary"]["eval_fns"]["chat_score:exact"]["mean"] > 0
    assert "no more" in found["baselines"]["m"]["error"]


def test_failures_that_quote_a_secret_are_shown_and_written_without_it(osmosis):
    secret = 's3cr3t/va"lue+1'
    head = "import os\ndef exact(solution_str, ground_truth, extra_info=None):\n"
    (osmosis.folder / "leaky_score.py").write_text(f"{head}    raise ValueError(os.environ['HIDDEN'])\n")
    os.environ["HIDDEN"] = secret
    try:
        line = (
            "eval -m chat_agent:agent -d d.jsonl --eval-fn leaky_score:exact --model offline/calculator --secret HIDDEN"
        )
        said = "".join(osmosis(f"{line} --name r -o r.json", HIDDEN=secret)[1:])
        said += "".join(osmosis(f"{line} --name s --json", HIDDEN=secret)[1:])
        said += "".join(osmosis("eval regrade r -o s.json", HIDDEN=secret)[1:])
    finally:
        del os.environ["HIDDEN"]
    assert "[redacted]" in said
    assert "s3cr3t" not in said
    for path in osmosis.folder.rglob("*.json*"):
        assert "s3cr3t" not in path.read_text(), path


def test_a_key_that_the_endpoint_says_back_is_not_shown(osmosis):
    def decide(body, number):
        return Reply({"error": {"message": "wrong key: key-of-mine-1"}}, 401)

    with ModelEndpoint(decide) as endpoint:
        code, out, err = osmosis(f"{BASE} --model m --base-url {endpoint.url} --api-key key-of-mine-1 --name r")
    assert code == 1
    assert "wrong key: [redacted]" in err
    assert "key-of-mine-1" not in out + err


def test_a_run_that_broke_off_says_how_to_run_its_failures_again(osmosis):
    with ModelEndpoint(lambda body, n: Reply("boom", 500) if n > 2 else None) as endpoint:
        line = f"{BASE} --model m --base-url {endpoint.url} --max-retries 0 --breaker-after 3 --batch-size 1"
        code, out, _ = osmosis(f"{line} --name r --json")
    assert code == 1
    commands = [step["command"] for step in json.loads(out)["next_steps_structured"]]
    assert "osmosis eval resume r" in commands
    assert "osmosis eval resume r --retry-failed" in commands


def test_declared_secrets_reach_no_file(osmosis):
    secret = "s3cr3t-value-for-test"
    rows = [{"user_prompt": f"{secret} 2 * 3", "ground_truth": "6"}]
    (osmosis.folder / "d.jsonl").write_text(json.dumps(rows[0]) + "\n")
    code, out, err = osmosis(f"{OFFLINE} --name r --secret HIDDEN -o r.json", HIDDEN=secret)
    assert code == 0, err
    report, *_ = osmosis("eval report r --html")
    assert report == 0
    for path in (osmosis.folder / ".osmosis").rglob("*"):
        if path.is_file():
            assert secret not in path.read_text(), path
    assert secret not in (osmosis.folder / "r.json").read_text() + out + err


@pytest.mark.parametrize("ended", [{}, {"ended_at": "2026-01-01T00:00:00+00:00", "stopped": "cut off"}])
def test_a_run_that_was_killed_is_reported_as_what_it_is(osmosis, ended):
    """The report on disk is of the session before: what counts is the journal and how many rows were selected."""
    assert osmosis(f"{OFFLINE} --name r -q --n 2")[0] == 0
    folder = osmosis.folder / ".osmosis" / "runs" / "r"
    lines = (folder / "rollouts.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "rollouts.jsonl").write_bytes(b"".join(lines[:7]) + lines[7][:20])
    run = json.loads((folder / "run.json").read_text())
    run["sessions"].append({"started_at": run["sessions"][0]["started_at"], "duration_ms": 7.0, **ended})
    (folder / "run.json").write_text(json.dumps(run))
    code, out, err = osmosis("eval report r --json")
    assert code == 0, err
    summary = json.loads(out)["data"]["summary"]
    assert (summary["total_rows"], summary["total_runs"], summary["completed_runs"]) == (10, 20, 7)
    assert summary["coverage"] == 7 / 20
    assert summary["total_duration_ms"] > 0
    listed = json.loads(osmosis("eval report --json")[1])["items"][0]
    assert (listed["total"], listed["mean"]) == (20, None)
    assert osmosis("eval report r --junit -o -")[1].count("<testcase") == 7
    assert osmosis("eval resume r -q")[0] == 0
    assert json.loads(osmosis("eval report r --json")[1])["data"]["summary"]["coverage"] == 1.0


def test_what_user_code_prints_is_no_part_of_the_results(osmosis):
    noisy = "print('while loading')\n" + SCORE.replace("    return", "    print('while scoring')\n    return")
    (osmosis.folder / "noisy_score.py").write_text(noisy)
    line = "eval -m chat_agent:agent -d d.jsonl --eval-fn noisy_score:exact --model offline/calculator"
    code, out, err = osmosis(f"{line} --name r --json")
    assert code == 0, err
    assert json.loads(out)["data"]["name"] == "r"
    assert "while loading" in err
    assert "while scoring" in err
    code, out, err = osmosis("eval regrade r --json")
    assert json.loads(out)["data"]["regraded"] == 10
    assert "while scoring" in err
    assert osmosis(f"{line} --name s -q")[1] == ""


def test_a_workspace_less_run_lists_itself(osmosis):
    assert osmosis(f"{OFFLINE} --name r -q")[0] == 0
    code, out, _ = osmosis("eval report --json")
    assert code == 0
    assert [row["name"] for row in json.loads(out)["items"]] == ["r"]


async def test_a_served_rollout_is_driven_scored_and_journaled(tmp_path):
    import asyncio

    from osmosis.serve.server.app import create_rollout_server
    from support.server import running_app

    write_rows(tmp_path / "d.jsonl", 8)
    scope: dict = {}
    exec(compile(ROLLOUT, "rollout.py", "exec"), scope)
    async with running_app(create_rollout_server(scope["backend"], configure_logging=False)) as url:
        line = f"eval --server {url} -d d.jsonl --model offline/calculator --batch-size 4 --n 2 --json"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "osmosis", *line.split()), cwd=tmp_path, stdout=-1, stderr=-1
        )
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    summary = json.loads(out)["data"]["summary"]
    assert summary["completed_runs"] == 16
    assert 0 < summary["reward"]["mean"] < 1
    assert summary["total_tokens"] > 0


@pytest.mark.parametrize(("answer", "done"), [(b"y", 20), (b"n", 3)])
def test_a_person_is_asked_after_the_pilot(osmosis, answer, done):
    """In a real terminal: the question is asked while the run's own event loop goes on."""
    here, there = os.openpty()
    line = f"{OFFLINE} --n 2 --pilot 3 --name r"
    environ = {"PATH": os.environ["PATH"], "HOME": str(osmosis.folder), "TERM": "xterm"}
    command = [sys.executable, "-m", "osmosis", *line.split()]
    streams = {"stdin": there, "stdout": there, "stderr": there}
    process = subprocess.Popen(command, cwd=osmosis.folder, env=environ, start_new_session=True, **streams)
    os.close(there)
    said, answered = b"", False
    try:
        while True:
            ready, _, _ = select.select([here], [], [], 60)
            assert ready, said
            try:
                said += os.read(here, 65536)
            except OSError:  # the other end is closed: the command is over
                break
            if b"\x1b[6n" in said:  # where is the cursor?
                said = said.replace(b"\x1b[6n", b"")
                os.write(here, b"\x1b[1;1R")
            if b"Run the rest?" in said and not answered:
                answered = True
                os.write(here, answer)
        code = process.wait(60)
    finally:
        process.kill()
        os.close(here)
    assert b"17 rollouts left" in said
    assert b"bug in osmosis" not in said
    assert code == (0 if done == 20 else 1), said
    assert len((osmosis.folder / ".osmosis/runs/r/rollouts.jsonl").read_text().splitlines()) == done


def test_what_a_platform_would_refuse_is_a_warning_and_data(osmosis):
    (osmosis.folder / "d.jsonl").write_text('{"user_prompt": "What is 1 * 7?", "ground_truth": "7"}\n' * 3)
    code, out, err = osmosis(f"{OFFLINE} --json")
    assert code == 0
    (warning,) = json.loads(out)["data"]["warnings"]
    assert (warning["rule"], warning["count"]) == ("rows", 1)
    assert json.loads(err.splitlines()[0])["warning"]["message"] == warning["message"]
    assert "a platform would" not in osmosis(f"{OFFLINE} --name outside")[2]
    (osmosis.folder / "rollouts").mkdir()
    code, _, err = osmosis(f"{OFFLINE} --name again")
    assert "a platform would refuse this dataset: the file has 3 rows" in err
    assert osmosis(f"{OFFLINE} --name quiet -q")[2] == ""


def test_a_file_where_the_folder_of_runs_belongs_is_named(osmosis):
    (osmosis.folder / ".osmosis").write_text("")
    code, _, err = osmosis(f"{OFFLINE} --name x")
    assert code == 1
    assert "cannot use" in err
    assert ".osmosis" in err
    assert "bug" not in err


def test_a_damaged_line_is_named_before_its_rollout_is_run_again(osmosis):
    osmosis(f"{OFFLINE} --name x")
    path = osmosis.folder / ".osmosis/runs/x/rollouts.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], lines[1][:20] + b"\n", *lines[2:]]))
    code, _, err = osmosis(f"{OFFLINE} --name x")
    assert code == 0
    assert "rollouts.jsonl: line 2 cannot be read" in err
    assert "1 to run" in err


@pytest.mark.parametrize("value", [-1e308, 1e308])
def test_a_journal_with_scores_beyond_numbers_is_still_reported(osmosis, value):
    osmosis(f"{OFFLINE} --name x -q")
    path = osmosis.folder / ".osmosis/runs/x/rollouts.jsonl"
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    for line in lines:
        line["scores"]["chat_score:exact"]["value"] = value
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path.parent / "report.json").unlink()
    for more in ("", " --html", " --md", " --junit"):
        code, _, err = osmosis(f"eval report x{more}")
        assert code == 0, err
