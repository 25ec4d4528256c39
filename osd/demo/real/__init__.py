"""The demo on a real model: heads of random weights learn from its answers while it serves."""
