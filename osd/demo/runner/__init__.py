"""A pair and a trainer beside it over a stream of prompts: what `osd demo --small` and `osd bench online` run."""
