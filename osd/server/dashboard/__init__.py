"""The dashboard: one page on the admin port that shows a server learning.

page      the page, our own assets, and plotly.js from its Python package
facts     what the page asks for beside the admin routes
live      what goes with every snapshot
inside    the newest requests token by token, in memory
"""
