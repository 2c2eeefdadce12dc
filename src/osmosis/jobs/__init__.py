"""What an executor starts: `python -m osmosis.jobs <job folder>` carries one run from its commit to its report.

It checks out the commit, makes the rollout's own environment, starts the rollout server, drives the evaluation and
reports to the platform over HTTP. It imports nothing of the platform and decides nothing about a run's status.
"""
