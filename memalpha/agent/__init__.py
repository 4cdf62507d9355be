"""The agent: one function makes a prompt, one applies a completion to a memory; training,
evaluation and use call these two.
"""
