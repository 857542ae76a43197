"""The machines: how they join, what is known of them, the links to them."""
