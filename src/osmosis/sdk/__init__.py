"""The names that user code imports: agents, graders, rewards, rubrics, tools.

Import each name from its module; this package re-exports nothing, so that a rollout loads only what it uses."""
