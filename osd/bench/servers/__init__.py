"""``python -m osd.bench servers``: osd's server beside those of transformers and vLLM, on the same prompts."""
