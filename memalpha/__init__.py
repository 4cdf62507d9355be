"""Train and use a memory-construction agent."""

__version__ = "0.1.0"
