"""Bodies of the platform's API (contract B). The spellings of other servers are accepted here and nowhere else."""
