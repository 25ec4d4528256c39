"""Claim, collate, distil, gate, publish."""
