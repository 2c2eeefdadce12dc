"""Training: a job collects rollouts, a trainer in a process of its own samples the model and updates its weights.

`link` is what the two say to each other; `trainer` is the process that imports torch, and nothing else here does.
"""
