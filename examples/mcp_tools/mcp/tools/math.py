"""A module called `math` in a folder called `mcp`: neither shadows anything, the folder has a process of its own."""

import math

from server import mcp


@mcp.tool
def multiply(first_val: float, second_val: float) -> float:
    """Multiply two numbers."""
    return round(math.prod((first_val, second_val)), 4)
