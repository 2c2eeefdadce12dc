"""Eval functions."""

from osmosis.classic.errors import (
    EvalFnError as EvalFnError,
)
from osmosis.classic.evaluation import (
    EvalFnWrapper as EvalFnWrapper,
)
from osmosis.classic.evaluation import (
    load_eval_fn as load_eval_fn,
)
from osmosis.classic.evaluation import (
    load_eval_fns as load_eval_fns,
)

__all__ = [
    "EvalFnError",
    "EvalFnWrapper",
    "load_eval_fn",
    "load_eval_fns",
]
