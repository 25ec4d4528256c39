"""``python -m benchmarks soak``: hours of what a server is for, load and learning and swaps, watched for what grows."""
