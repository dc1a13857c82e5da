"""Rows to codes and back, and the constraints that answers keep."""
