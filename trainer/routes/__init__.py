"""Routes found in the traffic, and what drafts for them would win.

nearest    which draft guesses best on given samples
offers     what clusters of traffic would win with drafts of their own
sameness   do two routes' drafts still differ?
drift      has a route's traffic moved?
discover   all of it, as proposals in the store
apply      a proposal becomes routes
scout      a worker that looks by itself
"""
