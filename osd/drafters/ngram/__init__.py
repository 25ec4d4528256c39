"""Drafts without a model: n-gram tables, tree search, prompt look-up."""
