"""Mains that wire rooms together."""
