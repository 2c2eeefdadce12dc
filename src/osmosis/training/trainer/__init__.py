"""The trainer: samples, updates, writes checkpoints. Only this package imports torch (extra `train`)."""
