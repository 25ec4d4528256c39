"""`python -m benchmarks vllm`."""
