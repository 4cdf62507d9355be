"""Audit of memories: what should not be in one, why, and what to do; guards for the same kinds."""
