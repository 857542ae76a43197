"""Deciding with numpy: fleet table, policies, planner."""
