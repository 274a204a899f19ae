"""Answers questions about pictures: `VisionChat`. To use it elsewhere copy this folder."""

from .chat import (
    MARKS,
    MOST_PIXELS,
    MOST_RATIO,
    PARTS,
    UNKNOWN,
    Figures,
    Picture,
    Turn,
    VisionChat,
    only_last,
    open_picture,
)

__all__ = [
    "MARKS",
    "MOST_PIXELS",
    "MOST_RATIO",
    "PARTS",
    "UNKNOWN",
    "Figures",
    "Picture",
    "Turn",
    "VisionChat",
    "only_last",
    "open_picture",
]
