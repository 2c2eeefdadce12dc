"""Evaluations."""

from osmosis.classic.errors import (
    EvalFnError as EvalFnError,
)
from osmosis.classic.evaluation import (
    EvalEvalSummary as EvalEvalSummary,
)
from osmosis.classic.evaluation import (
    EvalFnWrapper as EvalFnWrapper,
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
    load_eval_fn as load_eval_fn,
)
from osmosis.classic.evaluation import (
    load_eval_fns as load_eval_fns,
)
from osmosis.classic.evaluation import (
    pass_at_k as pass_at_k,
)

__all__ = [
    "EvalEvalSummary",
    "EvalFnError",
    "EvalFnWrapper",
    "EvalResult",
    "EvalRowResult",
    "EvalRunResult",
    "EvalRunner",
    "load_eval_fn",
    "load_eval_fns",
    "pass_at_k",
]
