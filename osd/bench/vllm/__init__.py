"""`python -m osd.bench vllm`."""
