"""A voice with random weights at the released size, in the folder layout of the released ones, to measure speed."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from pathlib import Path

import torch
from torch import nn

from notebooks.sambert_hifigan.network.acoustic import FORMULAS, KanTtsSAMBERT, save_acoustic
from notebooks.sambert_hifigan.network.vocoder import Generator, save_vocoder

SPEAKER = "F7"
SYMBOL_FRAMES = 9  # of every symbol: a syllable lasts 0.2 s
SAMPLE_RATE_HZ = 16000
# fmt: off
ACOUSTIC = {  # config.yaml of the 16 kHz voices with NSF: 12.7 million weights
    "sy": 147, "tone": 10, "syllable_flag": 8, "word_segment": 8, "emotion": 36, "speaker": 4, "max_len": 800,
    "embedding_dim": 512, "encoder_num_layers": 8, "encoder_num_heads": 8, "encoder_num_units": 128,
    "encoder_ffn_inner_dim": 1024, "encoder_dropout": 0.1, "encoder_projection_units": 32,
    "speaker_units": 32, "emotion_units": 32, "predictor_filter_size": 41, "predictor_fsmn_num_layers": 3,
    "predictor_num_memory_units": 128, "predictor_ffn_inner_dim": 256, "predictor_dropout": 0.1,
    "predictor_shift": 0, "predictor_lstm_units": 128, "dur_pred_prenet_units": [128, 128],
    "dur_pred_lstm_units": 128, "decoder_prenet_units": [256, 256], "decoder_num_layers": 12,
    "decoder_num_heads": 8, "decoder_num_units": 128, "decoder_ffn_inner_dim": 1024, "decoder_dropout": 0.1,
    "outputs_per_step": 3, "num_mels": 82, "NSF": True, "postnet_filter_size": 41, "postnet_fsmn_num_layers": 4,
    "postnet_num_memory_units": 256, "postnet_ffn_inner_dim": 512, "postnet_dropout": 0.1, "postnet_shift": 17,
    "postnet_lstm_units": 128,
}
VOCODER = {  # 4.9 million weights
    "in_channels": 80, "out_channels": 1, "channels": 256, "kernel_size": 7, "upsample_scales": [10, 5, 2, 2],
    "upsample_kernal_sizes": [20, 11, 4, 4], "resblock_kernel_sizes": [3, 7, 11], "bias": True, "causal": False,
    "resblock_dilations": [[1, 3, 5, 7]] * 3, "nonlinear_activation": "LeakyReLU",
    "nonlinear_activation_params": {"negative_slope": 0.1}, "use_weight_norm": True,
    "nsf_params": {"nb_harmonics": 7, "sampling_rate": SAMPLE_RATE_HZ},
}
# fmt: on


def random_voice(
    folder: Path, acoustic: Mapping = ACOUSTIC, vocoder: Mapping = VOCODER, sample_rate: int = SAMPLE_RATE_HZ
) -> Path:
    """Write the checkpoint folder of a voice with random weights; returns the folder.

    Every symbol lasts SYMBOL_FRAMES. acoustic, vocoder: the parameters in config.yaml. sample_rate: of the sound, Hz.
    """
    acoustic_model = KanTtsSAMBERT({"Model": {"KanTtsSAMBERT": {"params": dict(acoustic)}}})
    acoustic_model.config["linguistic_unit"] = {"speaker_list": SPEAKER}
    generator = Generator({"Model": {"Generator": {"params": dict(vocoder)}}})
    generator.config["audio_config"] = {"sampling_rate": sample_rate}
    _fill(acoustic_model)
    _fill(generator)
    last = acoustic_model.variance_adaptor.duration_predictor.fc
    with torch.no_grad():
        last.weight.zero_()
        last.bias.fill_(log(SYMBOL_FRAMES + 1))
    save_acoustic(folder / "am", acoustic_model)
    save_vocoder(folder / "voc", generator)
    return folder


@torch.no_grad()
def _fill(network: nn.Module) -> None:
    """Draw random weights whose scale keeps activations from growing or vanishing from layer to layer."""
    generator = torch.Generator().manual_seed(0)
    for name, tensor in network.state_dict().items():
        if tensor.ndim > 1 and name not in FORMULAS:
            tensor.normal_(0, tensor[0].numel() ** -0.5, generator=generator)
        elif name not in FORMULAS:
            tensor.normal_(float(name.endswith("weight")), 0.1, generator=generator)
