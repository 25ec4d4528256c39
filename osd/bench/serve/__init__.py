"""`osd bench serve`: closed-loop load on a real server process, beside the same prompts through the engine alone.

requests.py   what is asked for: prompts, or a real service's trace
client.py     somebody who asks over HTTP
load.py       many of them, and what came of it
process.py    a server to ask, and new versions of its draft
result.py     which turns there are; turns → figures
bench.py      the arms

The benches `servers` and `soak` use the first four.
"""
