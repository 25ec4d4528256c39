"""vLLM's plugin, a distribution of its own (``pyproject.toml`` beside this): what of it osd's side runs too is imported
from here."""
