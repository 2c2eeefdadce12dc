"""`python -m osmosis.jobs --run URL` runs one job, from the checkout of its commit to its report."""
