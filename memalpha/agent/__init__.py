"""The agent: one function makes a prompt, one applies a completion to a memory.

Training, evaluation and use call these two.
"""
