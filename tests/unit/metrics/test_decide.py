"""Questions about arms: their text, the order of the rows, the looks, and how often an answer is wrong."""

import random

import pytest

from osmosis.errors import UsageError
from osmosis.metrics.decide import answer_questions, begin_study, order_rows, parse_question, plan_stages, weigh_rows
from osmosis.records.run.study import Question, Study


def make_study(*margins: float, rows: int = 300, settled: int = 0) -> Study:
    questions = [Question(left=f"b{i}", right="a", margin=margin) for i, margin in enumerate(margins)]
    arms = {name: {"arm": name} for name in ("a", *(question.left for question in questions))}
    order = order_rows(range(rows), range(settled))
    return Study(
        questions=questions, order=order, settled=list(range(settled)), stages=plan_stages(rows, rows), arms=arms
    )


def run(study: Study, chance: random.Random, rates: tuple[float, ...]) -> tuple[Study, int]:
    """Let arms a, b0, b1, ... pass at these rates; the study at its end and its rollouts."""
    values = [[float(chance.random() < rate) for _ in study.order] for rate in rates]
    used = dict.fromkeys(study.arms, 0)
    while (due := study.due) is not None:
        rows = study.stages[due].rows
        used.update(dict.fromkeys(study.open_arms, rows))
        changes = {
            i: [b - a for a, b in zip(values[0][:rows], values[i + 1][:rows], strict=True)]
            for i, question in enumerate(study.questions)
            if question.answer is None
        }
        study = answer_questions(study, changes, 1.0)
    return study, sum(used.values())


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("qwen3 >= gpt-5-mini - 0.02", Question(left="qwen3", right="gpt-5-mini", margin=0.02)),
        ("b>a", Question(left="b", right="a")),
        ("a <= x/y@http://h:1/v1 + .1", Question(left="x/y@http://h:1/v1", right="a", margin=0.1)),
        ("tools=off >= tools=on + 0.1", Question(left="tools=off", right="tools=on", margin=-0.1)),
    ],
)
def test_a_question_is_read(text: str, question: Question) -> None:
    assert parse_question(text) == question
    assert parse_question(question.text) == question


def test_what_is_no_question_is_refused() -> None:
    with pytest.raises(UsageError, match="is not a question"):
        parse_question("qwen3 is better")


def test_arms_have_runs_of_their_own_unless_they_are_the_same() -> None:
    long = "with the tool that looks things up, "
    arms = {f"{long}twice": {"n": 2}, f"{long}once": {"n": 1}, "again": {"n": 1}}
    runs = begin_study(Study(name="tools", questions=[], arms=arms), range(9)).runs
    assert len(set(runs.values())) == 2
    assert runs["again"] == runs[f"{long}once"]


def test_settled_rows_are_run_less_often_and_count_more() -> None:
    study = make_study(0.0, settled=150)
    first = study.order[:60]
    assert sorted(study.order) == list(range(300))
    assert sum(row < 150 for row in first) in range(22, 27)
    weights = weigh_rows(study, 60)
    assert sum(weights) == pytest.approx(60)
    assert {round(weight, 1) for weight in weights} == {1.2, 0.8}
    assert weigh_rows(study, 300) == [1.0] * 300


def test_looks_grow_to_the_budget_and_attempts_come_when_all_rows_are_there() -> None:
    looks = [(stage.rows, stage.attempts) for stage in plan_stages(100, 350)]
    assert looks == [(24, 1), (36, 1), (51, 1), (72, 1), (100, 1), (100, 2), (100, 3)]
    assert [stage.rows for stage in plan_stages(100, 10)] == [10]


def test_large_differences_are_answered_early_and_hopeless_questions_given_up() -> None:
    study, rollouts = run(make_study(0.0, 0.02, -0.3), random.Random(1), (0.5, 0.9, 0.5, 0.4))
    better, same, far = study.questions
    assert (better.answer, far.answer) == ("yes", "no")
    assert better.interval is not None
    assert better.interval[0] > 0
    assert better.rows < 100
    assert same.answer == "undecided"
    assert "chance of" in same.reason
    assert rollouts < 4 * 300


def test_errors_are_rare() -> None:
    """A small part of `benchmarks/decide.py`: any answer of two questions at their threshold is wrong."""
    chance, studies = random.Random(7), [make_study(0.0, 0.0, rows=rows, settled=rows // 4) for rows in (30, 150)]
    wrong = 0
    for i in range(100):
        study, _ = run(studies[i % 2], chance, (0.5, 0.5, 0.5))
        wrong += any(question.is_answered for question in study.questions)
    assert 1 <= wrong <= 0.05 * 100 + 5
