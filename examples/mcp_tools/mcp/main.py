"""The MCP server: `osmosis eval --mcp ./mcp` starts it over stdio; alone it listens on HTTP."""

import tools  # noqa: F401 - registers the tools
from server import mcp

if __name__ == "__main__":
    mcp.run(transport="http", host="127.0.0.1", port=8080)
