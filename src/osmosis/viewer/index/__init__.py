"""The rollouts of a run as a table that can be searched: an SQLite file in a cache, never in the run, which can be
thrown away and made again. The same for a journal and for a run of a platform's database.
"""
