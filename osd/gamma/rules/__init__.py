"""One file a gamma rule."""
