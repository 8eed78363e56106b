"""Exact dynamic programs for joins."""
