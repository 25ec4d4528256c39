"""`python -m benchmarks eagle`: does a depth that adapts help EAGLE-2's trees (on-the-fly adaptation, D.5)?

learn.py    an EAGLE draft of random weights, trained on answers of the target
told.py     an engine whose rounds take what they would take on the machine of a cost table, and what texts took
arms.py     fixed depths and rules
bench.py    the run, its tables, the command
"""
