"""Measuring gamma controllers: in the engine, and in a simulator that replays what was recorded."""
