"""A Leader, or a Helper, on several processes: workers, and one coordinator that settles."""
