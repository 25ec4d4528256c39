"""``python -m benchmarks stats``: how long the questions of ``osd stats`` take over a year of counters."""
