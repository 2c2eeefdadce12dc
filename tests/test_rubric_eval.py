"""Where that page has tests of the prompt of `evaluate_rubric`; more of them: tests/unit/sdk."""

from osmosis.sdk.judge import make_question


def test_the_prompt_quotes_the_solution_and_its_context() -> None:
    info = {"original_input": "What is the capital of France?", "system_prompt": "Be strict."}
    question = make_question(
        "Names the capital.", "It is Paris.", info, ground_truth="Paris", metadata={"level": 1}, bounds=(0.0, 10.0)
    )
    system, user = (message["content"] for message in question.prompt(marked=False).messages)
    assert system.startswith("Be strict.")
    for text in (
        "Names the capital.",
        "It is Paris.",
        "capital of France",
        "GROUND_TRUTH",
        '"level": 1',
        "0.0 to 10.0",
    ):
        assert text in user
