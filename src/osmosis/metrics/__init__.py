"""Pure computation over records: what rollouts add up to, how sure that is, and how two runs differ.

Reads and writes nothing: rollouts come in, a `Report` or a `Comparison` goes out. The engine, the platform and the
viewer all take their figures from here.
"""
