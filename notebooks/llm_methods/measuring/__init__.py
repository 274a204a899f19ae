"""Measuring: every method in a process of its own, a row after each. `python -m notebooks.llm_methods.measuring`."""
