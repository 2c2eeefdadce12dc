"""A searchable table of a run's rollouts: an SQLite file in a cache, which can be deleted at any time."""
