"""Ask a platform for work, start each job on this machine or a cluster, and report how it ended."""
