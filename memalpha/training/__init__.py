"""Training: warm start on demonstrations, then GRPO over chunk steps. trainer.py and config.py
alone import trl.
"""
