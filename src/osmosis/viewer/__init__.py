"""The pages of runs, for any store of runs: the platform's database or a local journal. Knows no database, no session
and no web framework. Pages work without JavaScript and load nothing from other sites."""
