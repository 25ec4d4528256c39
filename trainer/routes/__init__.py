"""Discovery of routes in the traffic, and what drafts of their own would gain.

nearest    which draft guesses best on given samples
offers     what clusters of traffic would gain with drafts of their own
sameness   whether two routes' drafts still differ
drift      whether a route's traffic has moved
discover   runs the search and stores proposals
apply      turns a proposal into routes
background keeps prompts that topics are told from
scout      runs the search periodically in a worker
"""
