"""Converted models on an emulated ARM processor: whether they run, and compute what they compute here."""
