"""Small random networks of every kind, for the tests of this room, and what OpenVINO makes of a part of them."""

import numpy as np
import openvino as ov
import torch
from torch import nn

from notebooks.sambert_hifigan.network.acoustic import FORMULAS, KanTtsSAMBERT
from notebooks.sambert_hifigan.network.vocoder import Generator

EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
SIZES = {"sy": 11, "tone": 5, "syllable_flag": 4, "word_segment": 3, "emotion": 3, "speaker": 4}
ACOUSTIC = SIZES | {
    "max_len": 30,
    "embedding_dim": 24,
    "encoder_num_layers": 2,
    "encoder_num_heads": 2,
    "encoder_num_units": 16,
    "encoder_ffn_inner_dim": 20,
    "encoder_dropout": 0.1,
    "encoder_projection_units": 8,
    "speaker_units": 6,
    "emotion_units": 4,
    "predictor_filter_size": 5,
    "predictor_fsmn_num_layers": 2,
    "predictor_num_memory_units": 12,
    "predictor_ffn_inner_dim": 14,
    "predictor_dropout": 0.1,
    "predictor_shift": 0,
    "predictor_lstm_units": 7,
    "dur_pred_prenet_units": [9, 10],
    "dur_pred_lstm_units": 11,
    "decoder_prenet_units": [13, 15],
    "decoder_num_layers": 3,
    "decoder_num_heads": 2,
    "decoder_num_units": 16,
    "decoder_ffn_inner_dim": 18,
    "decoder_dropout": 0.1,
    "outputs_per_step": 3,
    "num_mels": 10,
    "postnet_filter_size": 7,
    "postnet_fsmn_num_layers": 2,
    "postnet_num_memory_units": 12,
    "postnet_ffn_inner_dim": 14,
    "postnet_dropout": 0.1,
    "postnet_shift": 2,
    "postnet_lstm_units": 9,
}
KINDS = {
    "plain": {},
    "nsf": {"NSF": True, "nsf_norm_type": "global", "num_mels": 12},
    "se": {"SE": True, "NSF": True, "nsf_norm_type": "global", "num_mels": 12},
}
VOCODER = {
    "in_channels": 10,
    "out_channels": 1,
    "channels": 16,
    "kernel_size": 7,
    "upsample_scales": [4, 3, 2],
    "upsample_kernal_sizes": [8, 7, 4],
    "resblock_kernel_sizes": [3, 5],
    "resblock_dilations": [[1, 3], [1, 2]],
    "bias": True,
    "causal": False,
    "nonlinear_activation": "LeakyReLU",
    "nonlinear_activation_params": {"negative_slope": 0.1},
    "use_weight_norm": True,
}
NSF = {"nsf_params": {"nb_harmonics": 3, "sampling_rate": 2400}}


def randomised(network: nn.Module, seed: int = 0) -> nn.Module:
    """The network with weights drawn from a seed, in evaluation mode; what is a formula stays."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            if tensor.ndim > 1 and name not in FORMULAS:
                tensor.normal_(0, tensor[0].numel() ** -0.5, generator=generator)
            elif name not in FORMULAS:
                tensor.normal_(float(name.endswith("weight")), 0.1, generator=generator)
    return network.eval()


def acoustic(kind: str = "plain", seed: int = 0, **changes) -> KanTtsSAMBERT:
    """A network whose phones last some frames, not all as long."""
    config = {"Model": {"KanTtsSAMBERT": {"params": ACOUSTIC | KINDS[kind] | changes}}}
    network = randomised(KanTtsSAMBERT(config), seed)
    durations = network.variance_adaptor.duration_predictor
    with torch.no_grad():
        for weight in (*durations.lstm.parameters(), durations.fc.weight):
            weight *= 3
        durations.fc.bias.fill_(1.3)
    return network


def vocoder(seed: int = 0, **changes) -> Generator:
    return randomised(Generator({"Model": {"Generator": {"params": VOCODER | changes}}}), seed)


def sentence(kind: str = "plain", phones: int = 9, batch: int = 1, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """ling, emotion and speaker for `KanTtsSAMBERT`."""
    rng = np.random.default_rng(seed)
    sizes = [SIZES[table] for table in ("sy", "tone", "syllable_flag", "word_segment")]
    ling, emotion = rng.integers(0, sizes, (batch, phones, 4)), rng.integers(0, SIZES["emotion"], (batch, phones))
    speaker = rng.integers(0, SIZES["speaker"], (batch, phones))
    if kind == "se":
        speaker = rng.standard_normal((batch, phones, ACOUSTIC["speaker_units"])).astype(np.float32)
    return tuple(map(torch.from_numpy, (ling, emotion, speaker)))


def traced(module: nn.Module, *example: torch.Tensor):
    """The module as OpenVINO runs it: a function of tensors that gives a list of tensors."""
    compiled = ov.Core().compile_model(ov.convert_model(module, example_input=example), "CPU", EXACT)
    return lambda *inputs: [torch.from_numpy(x) for x in compiled([x.numpy() for x in inputs]).values()]
