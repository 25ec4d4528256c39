"""Drafts that branch: trees of tokens, verified in one pass of the target."""
