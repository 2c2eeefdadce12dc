"""Bridges to other tools: their logs become runs, and runs become their logs. One module for each tool."""
