"""What the agent learns and is measured on: instances and their file format, the generators, and
loaders of published sets.
"""
