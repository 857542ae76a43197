"""Starts servers of others in OCI containers, and keeps them running, for the agent."""
