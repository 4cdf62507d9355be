"""Credits from the literature (``memalpha.credits``): each file names its paper, and departs from
it in what its docstring lists.
"""
