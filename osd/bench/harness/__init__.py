"""What every bench is made of, so that a bench is what it compares and little else.

plan.py      a bench is a dataclass whose fields are its options
field_docs.py  what stands below them, their help
prompts.py   files of prompts → data sets of tokens; lists on the command line
turns.py     jobs (an arm in a place) and cells (what came of one); arms take turns in shifted order; what was measured
             stays in a folder, where a stopped run goes on; medians of turns, ratios within turns, their errors
folder.py    that folder
watch.py     progress: what runs, how far, how long still; Ctrl-C in good order
report.py    tables, and the last line: JSON of one shape for all benches
picture.py   colours, panels and axes of all pictures
"""
