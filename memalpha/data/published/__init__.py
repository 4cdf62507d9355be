"""Loaders of published data sets, a file a set; the scorers that are one set's own stand beside its
loader.
"""
