"""`osd serve --upstream`: the same API over replicas that decode, in one process without a model.

run ──> app               the API's port: keys and limits as over our own engine (http/guard, http/ring)
  │       │ call          one call: whose it is, its route, what of it is passed on
  │       │ forward       its replica, and another one before the first byte; the stream as it comes (by what
  │       v               osd/attached/forwarder has for the proxy before a vLLM, too)
  │     replicas          which are well, which one a route takes
  │       ^
  ├──> watch              asks each whether it is well and what it serves; the store which there are
  └──> admin              the admin port with the dashboard, as over our own engine; inside: from what the store keeps

attached                the admin port of `osd attach`, by the same inside: nothing is passed on there
"""
