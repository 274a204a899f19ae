"""Clones a voice: `VoiceCloner`. To use it elsewhere copy this folder."""

from .cloner import (
    BERT,
    FP32_SUBMODELS,
    HUBERT_RATE_HZ,
    KERNEL_CACHE,
    MAX_SPEED,
    MIN_SPEED,
    NOISE_SCALE,
    PAUSE_S,
    SETTINGS_FILE,
    SILENCE_SAMPLES,
    SPARE_TOKENS,
    SPEAKER_SIZE,
    SUBMODELS,
    TOKENS_PER_PHONEME,
    VOCABULARY_FILE,
    Timings,
    Utterance,
    VoiceCloner,
)
