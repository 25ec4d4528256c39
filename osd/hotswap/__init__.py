"""Newer draft versions, swapped in while serving."""
