"""``python -m benchmarks gpu``: passes, rules and learning with models of real shapes and random weights."""
