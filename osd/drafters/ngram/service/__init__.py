"""N-gram tables of a serving process: one a route, learned from traffic, kept as versions."""
