"""Mandarin text to speech: `Synthesizer`. To use it elsewhere, copy this folder."""

from .synthesizer import (
    CONFIG,
    FP32_PROPERTIES,
    MAX_SPEED,
    MIN_SPEED,
    SPEAKERS,
    Spoken,
    Synthesizer,
    band_of,
    frames_of,
    parts_of,
    read_embedding,
    source_inputs,
    stretch,
)
