"""Answers to `osd stats`' questions."""
