"""The rule `goodput`: the most tokens a second of the whole batch."""
