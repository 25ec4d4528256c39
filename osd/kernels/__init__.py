"""Numba code for the decode loop, where it is cached, and what the host is."""
