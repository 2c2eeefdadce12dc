"""The runner of evaluations."""

from osmosis.classic.evaluation import (
    EvalEvalSummary as EvalEvalSummary,
)
from osmosis.classic.evaluation import (
    EvalResult as EvalResult,
)
from osmosis.classic.evaluation import (
    EvalRowResult as EvalRowResult,
)
from osmosis.classic.evaluation import (
    EvalRunner as EvalRunner,
)
from osmosis.classic.evaluation import (
    EvalRunResult as EvalRunResult,
)
from osmosis.classic.evaluation import (
    pass_at_k as pass_at_k,
)

__all__ = [
    "EvalEvalSummary",
    "EvalResult",
    "EvalRowResult",
    "EvalRunResult",
    "EvalRunner",
    "pass_at_k",
]
