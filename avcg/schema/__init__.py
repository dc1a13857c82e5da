"""What a column is, and what an answer may do to it."""
