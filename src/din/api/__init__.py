"""HTTP faces of the gateway."""
