"""The draft's chain with tokens from a table."""
