"""Answers to what one asks of a service that learns: plain records, read only, which others format."""
