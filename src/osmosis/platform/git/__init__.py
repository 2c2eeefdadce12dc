"""The repositories of workspaces: the git host, Git Sync, and what commits contain. User code is read, never run."""
