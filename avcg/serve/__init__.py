"""Answers over HTTP, and the page that shows them."""
