"""The structured memory: its schema, its state and the tools made from it. Pure and in process."""
