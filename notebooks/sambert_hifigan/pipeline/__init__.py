"""Speaks Mandarin: `Synthesizer`. To use it elsewhere copy this folder."""

from .synthesizer import (
    CONFIG,
    EXACT,
    FASTEST,
    LONGEST,
    PARTS,
    SLOWEST,
    SPEAKERS,
    Spoken,
    Synthesizer,
    band_of,
    checked_embedding,
    frames_of,
    parts_of,
    read_embedding,
    source_inputs,
    stretch,
)

__all__ = [
    "CONFIG",
    "EXACT",
    "FASTEST",
    "LONGEST",
    "PARTS",
    "SLOWEST",
    "SPEAKERS",
    "Spoken",
    "Synthesizer",
    "band_of",
    "checked_embedding",
    "frames_of",
    "parts_of",
    "read_embedding",
    "source_inputs",
    "stretch",
]
