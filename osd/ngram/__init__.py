"""Drafts without a model: an n-gram table with tree search, prompt lookup, and suffixes of kept traffic."""
