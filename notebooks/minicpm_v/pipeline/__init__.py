"""Answers questions about pictures: `VisionChat`. To use it elsewhere copy this folder."""

from .chat import (
    IMAGE_TOKENS,
    MAX_ASPECT_RATIO,
    MAX_PIXELS,
    SUBMODELS,
    UNKNOWN,
    Answer,
    Picture,
    Timings,
    Turn,
    VisionChat,
    only_last,
    open_picture,
)
