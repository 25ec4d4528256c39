"""Several server processes: one port, presence."""
