"""Prometheus metrics of engine, server and store."""
