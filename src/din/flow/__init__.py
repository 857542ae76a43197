"""Deciding in pure Python: time-outs, back-off, retry."""
