"""Uploading a local run: what a client announces and sends, until it is a finished run like every other.

`manifest` says what may be announced, `sessions` keeps what was and takes in its files, `trajectories` reads them,
and `finished_run` makes the run.
"""
