"""The HTTP side: requests, answers, streams, errors, limits."""
