"""Finished requests' totals."""
