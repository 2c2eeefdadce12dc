"""Git Sync: the repository of a workspace, what its commits hold, and which of them a run will use.

`repositories` has the row and the remote, `mirror` the bare folder, `discovery` reads one commit, `syncing` brings
all of it up to date, and `synced` answers from what was seen. User code is read here, never run.
"""
