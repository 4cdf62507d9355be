"""The structured memory: schema, state and the tools made from it."""
