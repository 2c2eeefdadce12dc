"""What calls a rollout server: its process, the client that turns one task into one rollout over any generation, and
the endpoint that serves the rollout's model and takes its callbacks.
"""
