"""What people look at after a run: curves, the before/after table, a static site, and rollouts in the terminal.

Everything here reads a run folder's files and nothing else: no model, no tokenizer, no training. A run that stopped early, or
evaluated nothing, gives a report of what there is. Whatever a data set or a model wrote is shown as text and never as markup.
"""
