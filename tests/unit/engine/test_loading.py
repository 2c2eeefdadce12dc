"""Loading user code: found as named, and every failure says where it is and what to do."""

import sys
from pathlib import Path

import pytest

from osmosis.engine.load_agent import load_agent, load_scorers
from osmosis.engine.loader import load_object, source_files
from osmosis.engine.provenance import plan_hashes, score_hash
from osmosis.errors import LoadError

HERE = Path(__file__).parent
LOOP = """
from osmosis.sdk.agent_loop import RolloutAgentLoop
class Loop(RolloutAgentLoop):
    name = "loop"
    def get_tools(self, request):
        return []
    async def run(self, ctx):
        return ctx.complete([])
"""


@pytest.fixture
def folder(tmp_path):
    before, path = set(sys.modules), list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(:\n  pass", r"bad_one\.py:1: "),
        ("x = 1\nraise RuntimeError('no config')", r"bad_one\.py:2: RuntimeError: no config"),
        ("import surely_not_installed", r"imports .surely_not_installed., which is not installed"),
        ("import sys\nsys.exit(4)", r"exits while it is imported"),
    ],
)
def test_modules_that_fail_say_where(folder, source, message):
    (folder / "bad_one.py").write_text(source)
    with pytest.raises(LoadError, match=message):
        load_object("bad_one:thing", folder)


@pytest.mark.parametrize(
    ("module", "again"), [("bad_one", "`python -c 'import bad_one'`"), ("bad_one.py", "`python bad_one.py`")]
)
def test_a_module_that_fails_tells_how_to_see_it_fail(folder, module, again):
    (folder / "bad_one.py").write_text("raise RuntimeError('no config')")
    with pytest.raises(LoadError) as caught:
        load_object(f"{module}:thing", folder)
    assert caught.value.hint == f"{again} shows the whole error"


def test_near_names_are_suggested(folder):
    (folder / "rewarding.py").write_text("def compute_reward(): ...")
    with pytest.raises(LoadError) as caught:
        load_object("rewarding:compute_rewards", folder)
    assert caught.value.hint == "did you mean rewarding:compute_reward?"
    with pytest.raises(LoadError) as caught:
        load_object("rewardin:compute_reward", folder)
    assert caught.value.hint == "did you mean rewarding?"
    with pytest.raises(LoadError, match="does not name an object"):
        load_object("rewarding", folder)


def test_a_module_of_the_same_name_elsewhere_is_not_confused(folder):
    for name in ("one", "two"):
        (folder / name).mkdir()
        (folder / name / "same_name.py").write_text(f"where = {name!r}")
    assert load_object("same_name:where", folder / "one") == "one"
    assert load_object("same_name:where", folder / "two") == "two"
    assert load_object("same_name:where", folder / "one") == "one"


def test_agents_are_instances_classes_files_or_the_only_one_of_a_module(folder):
    (folder / "loops.py").write_text(LOOP + "loop = Loop()\n")
    by_name = load_agent("loops:loop", folder)
    assert by_name.loop is load_agent("loops", folder).loop
    assert type(load_agent("loops:Loop", folder).loop).__name__ == "Loop"
    assert load_agent("loops.py:loop", folder).kind == "agent loop"
    assert by_name.files == [folder / "loops.py"]
    with pytest.raises(LoadError, match="not an agent"):
        load_agent("loops:__name__", folder)


def test_a_workflow_brings_the_grader_beside_it():
    found = load_agent("helpers_agents:Work", HERE)
    assert found.graded
    assert found.backend.max_concurrent is None


def test_a_main_file_may_import_its_workflow_and_grader_from_a_package(folder):
    (folder / "theirs").mkdir()
    (folder / "theirs" / "agent.py").write_text((HERE / "helpers_agents.py").read_text())
    (folder / "main.py").write_text("from osmosis import AgentWorkflow, Grader\nfrom theirs.agent import Grade, Work\n")
    found = load_agent("main.py", folder)
    assert (found.backend.workflow.__name__, found.graded) == ("Work", True)


def test_an_agent_that_cannot_be_made_says_how(folder):
    (folder / "needy.py").write_text(LOOP + "    def __init__(self, key):\n        self.key = key\n")
    with pytest.raises(LoadError, match="needs arguments"):
        load_agent("needy:Loop", folder)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("two_parameters", "cannot be called with solution_str=, ground_truth=, extra_info="),
        ("wrong_first", "must be named solution_str or messages"),
        ("chat", "not a function"),
    ],
)
def test_score_functions_of_another_shape_are_refused_when_loaded(name, message):
    with pytest.raises(LoadError, match=message):
        load_scorers([f"helpers_agents:{name}"], HERE)


def test_a_score_function_named_twice_is_refused():
    with pytest.raises(LoadError, match="listed twice"):
        load_scorers(["helpers_agents:exact", "helpers_agents:exact"], HERE)


def test_hashes_follow_the_imports_of_each_side(folder, make_plan):
    (folder / "shared_part.py").write_text("x = 1")
    (folder / "agent_part.py").write_text("import shared_part\n" + LOOP + "loop = Loop()\n")
    (folder / "score_part.py").write_text("def f(solution_str, ground_truth, extra_info=None):\n    return 1.0\n")
    agent = load_agent("agent_part:loop", folder)
    plan = make_plan(agent="agent_part:loop", score_fns=["score_part:f"])

    def hashes():
        return plan_hashes(plan, agent_files=agent.files, base_dir=folder)

    first = hashes()
    (folder / "score_part.py").write_text("def f(solution_str, ground_truth, extra_info=None):\n    return 0.5\n")
    second = hashes()
    assert {k for k in first if first[k] != second[k]} == {"score"}
    (folder / "shared_part.py").write_text("x = 2")
    third = hashes()
    assert {k for k in second if second[k] != third[k]} == {"agent"}
    plan.model.params["temperature"] = 1
    assert {k for k in third if third[k] != hashes()[k]} == {"sampling"}
    assert score_hash(["score_part:f"], folder) == third["score"]


def test_source_files_leave_installed_packages_out(folder):
    (folder / "uses.py").write_text("import orjson\nimport json\n")
    load_object("uses:json", folder)
    assert source_files(sys.modules["uses"], folder) == [folder / "uses.py"]
