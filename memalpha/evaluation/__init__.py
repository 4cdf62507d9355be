"""Measuring memories: systems compared under one protocol, what an evaluation writes down, and held-out results of training."""
