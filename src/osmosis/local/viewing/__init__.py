"""`osmosis view`: runs in a browser without a platform, from local journals or fetched. Changes no rollout."""
