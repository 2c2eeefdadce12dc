"""What the author of a rollout runs: the server that takes rollouts for somebody else, runs each of them once and
hands over its one result.
"""
