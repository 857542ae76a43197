"""Who may do what, who did what, and the keys of models."""
