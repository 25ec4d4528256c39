"""``python -m osd.bench stats``: how long the questions of ``osd stats`` take over a year of counters."""
