"""Draft trees measured: accept length and tokens a second of every way to draft, on any prompts and any corpus."""
