"""Tools from typed functions: the schema comes from the annotations, the descriptions from the docstrings."""

from osmosis import tool


@tool
async def add(a: float, b: float) -> float:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


@tool
async def subtract(a: float, b: float) -> float:
    """Subtract b from a."""
    return a - b


@tool
async def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return round(a * b, 4)


@tool(timeout_s=5)
async def divide(a: float, b: float) -> float:
    """Divide a by b."""
    if b == 0:
        raise ValueError("b must not be zero")
    return a / b


TOOLS = [add, subtract, multiply, divide]
