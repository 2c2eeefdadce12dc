"""A rubric in code: it gets the configuration of the rubric file (or of training) and asks the judge itself."""

from osmosis import evaluate_rubric, osmosis_rubric


@osmosis_rubric
def judged_and_short(solution_str: str, ground_truth: str | None, extra_info: dict) -> float:
    """The judge's score, halved for long answers."""
    score = evaluate_rubric(
        rubric=extra_info["rubric"],
        solution_str=solution_str,
        model_info=extra_info["model_info"],
        ground_truth=ground_truth,
        metadata=extra_info.get("metadata"),
    )
    return score if len(solution_str) <= 400 else score / 2


if __name__ == "__main__":
    config = {"provider": "offline", "model": "judge", "rubric": "Names the capital."}
    print("score:", judged_and_short("The capital of France is Paris.", "Paris", config))
