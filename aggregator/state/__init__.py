"""How parties keep what must last: SQLite files, published files, and what tables take."""
