"""The agent: one function makes the prompt of a step, one applies a completion to a memory; training, evaluation and use call these two."""
