"""Agents of other frameworks inside a workflow: their model is the one the rollout was given, and the conversation
they had becomes the rollout's sample. Each module needs its framework's extra; nothing here is imported for you.
"""
