"""The reward: its parts as pure functions of data, and their weighted sum."""
