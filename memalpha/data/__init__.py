"""Data on which the agent learns and is measured: instances and their file format, the generators,
and loaders of published sets.
"""
