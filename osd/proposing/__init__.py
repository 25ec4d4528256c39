"""Drafts without a model in a server: tables by route that are kept, an index over kept requests, and their thread."""
