"""A number out of what user code hands over: built-in ones, `Decimal`, `Fraction`, and scalars of array libraries.

True and false are 1 and 0. Text is no number, and neither is an array of several.
"""

from __future__ import annotations

import math
from decimal import Decimal
from numbers import Real


def as_float(found: object) -> float:
    """As a finite float. ValueError says what it is instead, to follow "returned" or "is"."""
    if type(found) is not float and not isinstance(found, (Real, Decimal)):
        found = _unwrapped(found)
    try:
        value = float(found)
    except OverflowError:
        raise ValueError("a whole number too large for a float") from None
    if not math.isfinite(value):
        raise ValueError(f"{value}, which is not a finite number")
    return value


def _unwrapped(found: object) -> Real | Decimal:
    """The one number in a scalar of NumPy, PyTorch, JAX or TensorFlow."""
    unwrap = getattr(found, "item", None) or getattr(found, "numpy", None)
    if callable(unwrap) and _size(found) == 1:
        inner: object = unwrap()
        inner = inner.item() if hasattr(inner, "item") else inner
        if isinstance(inner, (Real, Decimal)):
            return inner
    raise ValueError(f"{type(found).__name__} instead of a number")


def _size(found: object) -> object:
    """How many numbers there are: `size` is a number for NumPy and JAX, a method for PyTorch, which has `numel`."""
    count = getattr(found, "numel", None)
    if callable(count):
        return count()
    size = getattr(found, "size", 1)
    return 1 if callable(size) else size
