"""Virtual time over the real cores."""
