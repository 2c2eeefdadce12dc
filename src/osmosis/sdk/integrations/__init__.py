"""Agents of other frameworks inside a workflow: they ask the rollout's model, and their conversation becomes the
rollout's sample. Each module needs its framework's extra; nothing is imported here."""
