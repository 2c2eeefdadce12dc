"""The pages that show a run: its figures, its rollouts, one conversation, its config, its log.

Rendered from a `RunSource`, so that any store of runs can show them: the platform from its database, a command from a
journal. Knows no database, no session and no web framework. Works without JavaScript; nothing is loaded from
elsewhere and no script is inline.
"""
