"""Choosing a route for a request. Small, and without torch."""
