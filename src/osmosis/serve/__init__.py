"""The remote-rollout protocol: the server that runs rollouts for someone else, the gate a rollout calls for its
model and reports to, and the client that drives a served rollout as one `RolloutFn`. Generations 0.2, 0.3
(callbacks) and 0.4 (polling) are spoken on both sides; nothing here scores, stores or prints.
"""
