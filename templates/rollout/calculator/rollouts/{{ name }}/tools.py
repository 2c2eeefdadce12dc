"""The four tools of the calculator. Their schemas come from the annotations, their descriptions from the docstrings."""

from __future__ import annotations

from osmosis import tool


@tool
def add(a: float, b: float) -> float:
    """The sum of two numbers."""
    return round(a + b, 4)


@tool
def subtract(a: float, b: float) -> float:
    """The first number minus the second."""
    return round(a - b, 4)


@tool
def multiply(a: float, b: float) -> float:
    """The product of two numbers."""
    return round(a * b, 4)


@tool
def divide(a: float, b: float) -> float:
    """The first number divided by the second, which must not be 0."""
    return round(a / b, 4)


TOOLS = [add, subtract, multiply, divide]
