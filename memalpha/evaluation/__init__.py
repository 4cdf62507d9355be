"""Evaluation: held-out rollouts of a policy, scored as in training, and the statistics of comparing two."""
