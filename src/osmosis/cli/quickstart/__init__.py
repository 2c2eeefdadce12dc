"""`osmosis quickstart`: the steps a person would type (`steps`), the model they run with (`model`), the command."""
