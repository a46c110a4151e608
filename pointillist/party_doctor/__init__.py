"""What keeps a Leader or a Helper from its work, and the one thing to do about each."""
