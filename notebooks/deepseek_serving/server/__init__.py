"""Serves a model repository: `serve`."""

from .process import serve

__all__ = ["serve"]
