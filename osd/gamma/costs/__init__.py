"""Measured costs of drafting and verifying."""
