"""From a file and an order to a version that can be deployed."""
