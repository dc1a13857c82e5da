"""HTML pages and plots of answers and audits."""
