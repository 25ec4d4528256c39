"""`benchmarks papers`: every table and figure of five papers, what is claimed there, and what comes of it here.

claims.py      a figure with its error; a claim with the rule that judges it
entry.py       a table or figure of a paper; an experiment and its sizes
catalogue/     a file a paper: everything that it shows, and what is run for it
experiments/   what is run: benches of this package, replays, arithmetic
bench.py       runs entries, one folder each; finished ones are not run again
page.py        the page of results: HTML, Markdown, JSON
reference.py   docs/papers.md, written from the catalogue
"""
