"""Local runs of agent loops as generation 0.2 offered them in Python: runners, clients and readers as classes.

For existing code that drives runs itself; everything here is a thin shape over `engine`, `llm` and `sdk`. New code
calls `osmosis.engine.evaluate`.
"""
