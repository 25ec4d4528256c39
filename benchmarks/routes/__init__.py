"""`python -m benchmarks routes`: separate drafts against a single one, on traffic of several domains."""
