"""The self-hostable platform: HTTP API, services, tables, worker, executors, git host and pages.

Imports point down inside: `app -> api | web | githost | worker -> security -> services | executors -> tables ->
db -> settings`. It never imports user code, the engine or a model library: a crash of user code is the exit code
of a job, never of the platform.
"""
