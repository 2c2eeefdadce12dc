"""The eval engine: load an agent, read rows, run each attempt, score it, journal it, add it up.

One loop (`engine.evaluate`) serves the local command, the platform's jobs and the trainer. The engine prints
nothing, reads no environment and knows no platform; what it finds out goes to an `Observer` and a `Report`.
"""
