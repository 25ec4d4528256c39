"""Drafters propose tokens for the target to check."""
