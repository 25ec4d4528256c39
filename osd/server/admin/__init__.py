"""The admin port: routes over the store's services, and the dashboard, one page that shows a server learning.

routes      what an admin may ask and decide
dashboard   the page, its assets, plotly.js from its Python package, and what the page asks for beside the routes
snapshots   what is asked of a server, and its state once a second
inside      the newest requests token by token, in memory
"""
