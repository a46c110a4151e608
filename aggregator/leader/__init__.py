"""The Leader: admits reports, adds them up, asks the Helper, unmasks and releases."""
