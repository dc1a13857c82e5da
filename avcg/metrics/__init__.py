"""Measures of answers, by judges that no method has seen."""
