"""The dashboard: one page on the admin port that shows a server learning.

page      the page, its assets, and plotly.js from its Python package
facts     the page's data beside the admin routes
live      the current numbers in every snapshot
inside    the newest requests token by token, in memory
"""
