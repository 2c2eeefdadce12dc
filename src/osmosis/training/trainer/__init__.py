"""The trainer: a process of its own that samples the model, updates its weights and writes checkpoints.

`python -m osmosis.training.trainer PLAN SOCKET`. It holds no lease, no token of the platform and no secret but the key
of a Tinker server. It imports torch, transformers, TRL and PEFT (extra `train`); nothing outside this package does.
"""
