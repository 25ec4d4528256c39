"""Routers, which choose a route and a draft for each request. Small, and without torch."""
