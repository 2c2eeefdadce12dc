"""What keeps a platform for years: backup and restore, retention and its sweep, its doctor, metrics and logs.

Works on the data folder and the database, from the platform's own process or from a command beside it. Changes nothing
that people made, except where they ask for it.
"""
