"""``python -m osd.bench soak``: hours of what a server is for, load and learning and swaps, watched for what grows."""
