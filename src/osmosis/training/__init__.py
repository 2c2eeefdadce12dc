"""A job collects rollouts, a trainer in a process of its own updates weights; only `trainer` imports torch."""
