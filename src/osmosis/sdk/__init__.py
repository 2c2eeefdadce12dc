"""What people write against: agents, graders, rewards, rubrics, tools.

Import each name from its module; this package re-exports nothing, so that a rollout loads only what it uses. The
alias package `osmosis_ai` offers the same objects under the names existing projects know.
"""
