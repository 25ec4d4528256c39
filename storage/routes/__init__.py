"""Routes, what they match, and their history."""
