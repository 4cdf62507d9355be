"""The audit of memories finds entries that should not be in one, gives a reason and proposes a
remedy; guards refuse the same kinds.
"""
