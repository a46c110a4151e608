"""Files that must be right: keys and secrets, files of strangers, SQLite, and who owns them."""
