"""The guide to copy: every method as data, its call on a model of yours, and the choice among measured rows."""

from .choosing import GOALS, front, recommend
from .compressing import compress, needs_text
from .methods import ACTIVATIONS, CACHES, DECODINGS, MECHANISMS, METHODS, PROMPTS, READINGS, WEIGHTS, Method, named, of

__all__ = [
    "ACTIVATIONS",
    "CACHES",
    "DECODINGS",
    "GOALS",
    "MECHANISMS",
    "METHODS",
    "Method",
    "PROMPTS",
    "READINGS",
    "WEIGHTS",
    "compress",
    "front",
    "named",
    "needs_text",
    "of",
    "recommend",
]
