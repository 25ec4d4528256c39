"""``python -m benchmarks distil``: Table 1 of Online Speculative Decoding by one command.

arms.py     the table's columns: whose tokens a draft learns behind, and by which distance
texts.py    the target's answers, kept to learn from and to test on
bench.py    one draft after another is distilled offline and reads the test texts; a stopped run goes on
result.py   α with errors
table.py    all of it, from files of prompts to what is told
"""
