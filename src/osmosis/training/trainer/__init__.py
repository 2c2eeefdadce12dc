"""The trainer: a process of its own that samples the model, updates its weights and writes checkpoints. `python -m
osmosis.training.trainer PLAN SOCKET`. It holds no lease, no token of the platform and no secret but the key of a Tinker
or vLLM server. Only this package imports torch, transformers and PEFT (extra `train`)."""
