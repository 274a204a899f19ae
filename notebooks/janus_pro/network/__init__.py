"""Janus-Pro in PyTorch: its checkpoints. `reference` runs the unquantised network."""

from notebooks.janus_pro.network.checkpoint import (
    AUTOENCODERS,
    PADDING,
    PARTS,
    TOWERS,
    UNUSED,
    answer_separator,
    canonical_name,
    canonical_tensors,
    configuration,
    encode_pictures,
    guidance,
    load,
    load_weights,
    save_tiny,
    system_prompt,
)
