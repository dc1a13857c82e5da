"""A per-row robust search: gradient descent on each answer until every hypothesis is convinced."""
