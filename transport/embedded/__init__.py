"""The embedded log: a SQLite file that several processes of one machine share."""
