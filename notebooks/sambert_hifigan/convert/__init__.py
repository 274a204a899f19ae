"""Converts SAMBERT-HiFiGAN to OpenVINO models."""

from .voice import (
    MODELS,
    PRECISIONS,
    Encoder,
    calibration,
    decoder_step,
    duration_step,
    prepare,
    quantize,
    source,
    to_ir,
)
