"""How well language and topic of a prompt are guessed, and how fast."""
