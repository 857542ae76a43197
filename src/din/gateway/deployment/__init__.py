"""Who holds which slice of a version: placed, loaded, repaired, handed over."""
