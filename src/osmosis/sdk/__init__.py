"""Import each name from its module: this package re-exports nothing, so that a rollout loads only what it uses."""
