"""A job collects rollouts; a trainer in a process of its own samples the model and updates its weights. `protocol` is
what the two say to each other; only `trainer` imports torch."""
