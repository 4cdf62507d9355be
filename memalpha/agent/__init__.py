"""The agent: one function makes a step's prompt, one applies a completion; training, evaluation and use call these two."""
