"""Two settings of one agent, evaluated and compared in Python. `python evaluate.py` runs it with the stand-in model.

The runs are kept in `.osmosis/runs/`; run the script again and it goes on, or finds that everything is there already.
"""

import asyncio
import json

from osmosis import ModelSpec, Run, Timeouts, evaluate, evaluate_async, tool
from osmosis.sdk.tools import ToolLoop


@tool
async def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


def exact(solution_str: str, ground_truth: str, extra_info: dict | None = None) -> float:
    return 1.0 if solution_str.rpartition("#### ")[2].strip() == ground_truth else 0.0


def short(messages: list, ground_truth: str, metadata: dict) -> float:
    return 1.0 if len(messages) <= 5 else 0.0


agent = ToolLoop([multiply], name="calculator")
rows = [
    {"system_prompt": "Use the tool.", "user_prompt": f"What is {a} * {a + 3}?", "ground_truth": str(a * (a + 3))}
    for a in range(2, 14)
]


def main() -> Run:
    careful = evaluate(
        agent,
        rows,
        scorers=[exact, short],
        model=ModelSpec(name="offline/calculator", kind="offline", seed=1),
        name="careful",
        attempts=3,
        concurrency=8,
        timeouts=Timeouts(agent_s=60),
    )
    print(careful)
    hasty = evaluate(agent, rows, scorers=[exact, short], model="offline/calculator", name="hasty", max_turns=1)
    found = careful.compare(hasty)
    print(f"against {hasty.name}: {found.difference:+.3f}, {found.verdict}")
    worst = min(careful.rollouts, key=lambda rollout: rollout.scores["exact"].value or 0.0)
    print(json.dumps(worst.messages[-1]))
    return careful


async def several() -> list[Run]:
    """In code that is async already: two runs at once."""
    return await asyncio.gather(
        *(
            evaluate_async(
                agent, rows[:4], scorers=exact, model="offline/calculator", name=f"turns-{turns}", max_turns=turns
            )
            for turns in (2, 4)
        )
    )


if __name__ == "__main__":
    main()
    for run in asyncio.run(several()):
        print(run)
