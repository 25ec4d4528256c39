"""Discovery of routes in the traffic, and what drafts of their own would gain.

compare    which draft guesses best, whether two routes' drafts still differ, whether a route's traffic has moved
offers     what clusters of traffic would gain with drafts of their own
discover   runs the search and stores proposals, in a worker periodically
apply      turns a proposal into routes
topics     keeps prompts that topics are told from
commands   `python -m trainer routes`
"""
