"""What pages of numbers share: layout, charts and words: pure functions, of no store or agent."""
