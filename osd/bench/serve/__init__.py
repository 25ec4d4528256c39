"""`osd bench serve`: closed-loop load on a real server process, beside the same prompts through the engine alone."""
