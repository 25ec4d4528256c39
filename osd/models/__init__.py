"""Models as they are loaded and passed through: weights, forward passes, key-value cache, attention, adapters."""
