"""Benchmarks that ship with osd. Each prints one line of JSON last; docs/bench-log.md keeps dated results."""
