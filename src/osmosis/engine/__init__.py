"""The eval engine: load an agent, read rows, run each attempt, score it, journal it, add it up."""
