"""Dataset files for local runs, `osmosis check` and the platform. No content is executed, no file changed."""
