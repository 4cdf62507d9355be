"""Reports from a run folder's files alone: curves, tables, static site, terminal. Recorded text is
never read as markup.
"""
