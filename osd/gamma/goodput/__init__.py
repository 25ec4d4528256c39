"""The rule goodput: drafts sized for the most tokens a second."""
