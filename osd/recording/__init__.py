"""From rounds to samples: what is kept for learning, and how it reaches the store."""
