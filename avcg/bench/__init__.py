"""The benchmark: protocols, cells, tables and figures."""
