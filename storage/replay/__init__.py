"""Samples kept for learning: segments, index, retention, purge."""
