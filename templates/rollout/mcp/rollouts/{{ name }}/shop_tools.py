"""An MCP server with the tools of a small shop. `python shop_tools.py` serves it over stdio to any MCP client."""

from __future__ import annotations

from fastmcp import FastMCP

server = FastMCP("shop")


@server.tool
def multiply_price(quantity: float, unit_price: float) -> float:
    """What `quantity` pieces cost at `unit_price` each."""
    return round(quantity * unit_price, 2)


@server.tool
def add_amounts(first: float, second: float) -> float:
    """The sum of two amounts of money."""
    return round(first + second, 2)


if __name__ == "__main__":
    server.run()
