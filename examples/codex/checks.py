"""Score what an agent program answered, and what it left in its folder."""


def answered(solution_str: str, ground_truth: str, extra_info: dict | None = None, **_: object) -> float:
    """1 when the program ended well and its last answer has the word."""
    command = (extra_info or {})["command"]
    return float(command["exit_code"] == 0 and ground_truth in solution_str)
