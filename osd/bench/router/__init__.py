"""`osd bench router`: how well language and topic of a prompt are guessed, and how fast."""
