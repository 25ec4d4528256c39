"""What osd is measured by, for those who work on it: `python -m benchmarks NAME` in a checkout; nothing imports it.

Commit 002f94b5 keeps experiments that are finished, with their benches.

What a user measures with a pair of his own is `osd bench` (`osd/bench`), whose harness the benches here share.
"""
