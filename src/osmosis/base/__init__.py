"""The floor that everything stands on: files, locks, processes, addresses, git, secrets taken out, back-off, folders.

Each is written once, here, over a well-kept library where there is one. Knows nothing of runs, models or platforms,
and imports nothing of ours but `osmosis.errors`.
"""
