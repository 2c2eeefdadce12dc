"""The server that the tools register with."""

from fastmcp import FastMCP

mcp = FastMCP("calculator")
