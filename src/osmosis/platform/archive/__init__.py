"""A platform as one file: its rows, the file that holds them with all else, and the one made before an upgrade."""
