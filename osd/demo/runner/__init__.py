"""A pair and a trainer beside it over a stream of prompts: what `osd demo` and `osd bench online` run."""
