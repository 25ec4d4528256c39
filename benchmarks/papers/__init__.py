"""Every table and figure of five papers: what is claimed there, and what comes of it here.

*.toml          a paper each: everything that it shows, what is run for it, and the rule of each claim
catalogue.py    reads them
claims.py       a claim, and how it is judged
experiment.py   what an experiment is, finds, and has around it
experiments/    what is run: benches of this folder, replays, arithmetic
bench.py        runs entries, one folder each; finished ones are not run again
results.py      what a folder holds
page.py         the page of results: Markdown, HTML
"""
