"""Small random networks and voices of every kind, with the standard tables of symbols for voices."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import torch
from torch import nn

from notebooks.sambert_hifigan.network.acoustic import FORMULAS, KanTtsSAMBERT, save_acoustic
from notebooks.sambert_hifigan.network.vocoder import Generator, save_vocoder
from notebooks.sambert_hifigan.pipeline import FP32_PROPERTIES
from notebooks.sambert_hifigan.pipeline.frontend import standard_tables

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
NAMES = ["Anna", "Bao"]
RATE = 2400  # Hz
TABLE_SIZES = {table: len(entries) for table, entries in standard_tables(NAMES).items()}


def randomised(network: nn.Module, seed: int = 0) -> nn.Module:
    """The network with weights drawn from a seed, in evaluation mode; computed tensors stay."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            if tensor.ndim > 1 and name not in FORMULAS:
                tensor.normal_(0, tensor[0].numel() ** -0.5, generator=generator)
            elif name not in FORMULAS:
                tensor.normal_(float(name.endswith("weight")), 0.1, generator=generator)
    return network.eval()


def acoustic(kind: str = "plain", seed: int = 0, **changes) -> KanTtsSAMBERT:
    """An acoustic model whose phonemes have different durations of some frames."""
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


def sentence(kind: str = "plain", phonemes: int = 9, batch: int = 1, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """ling, emotion and speaker for `KanTtsSAMBERT`."""
    rng = np.random.default_rng(seed)
    sizes = [SIZES[table] for table in ("sy", "tone", "syllable_flag", "word_segment")]
    ling, emotion = rng.integers(0, sizes, (batch, phonemes, 4)), rng.integers(0, SIZES["emotion"], (batch, phonemes))
    speaker = rng.integers(0, SIZES["speaker"], (batch, phonemes))
    if kind == "se":
        speaker = rng.standard_normal((batch, phonemes, ACOUSTIC["speaker_units"])).astype(np.float32)
    return tuple(map(torch.from_numpy, (ling, emotion, speaker)))


def traced(module: nn.Module, *example: torch.Tensor):
    """The module as OpenVINO runs it: a function of tensors that gives a list of tensors."""
    compiled = ov.Core().compile_model(ov.convert_model(module, example_input=example), "CPU", FP32_PROPERTIES)
    return lambda *inputs: [torch.from_numpy(x) for x in compiled([x.numpy() for x in inputs]).values()]


class Lazy(dict):
    """The result of `make(kind)` for every kind, computed at its first use."""

    def __init__(self, make: Callable[[str], object]) -> None:
        self.make = make

    def __missing__(self, kind: str):
        self[kind] = self.make(kind)
        return self[kind]


def voice_networks(kind: str = "plain") -> tuple[KanTtsSAMBERT, Generator]:
    """The acoustic model and the vocoder of a voice, as `voice` saves them."""
    acoustic_model = acoustic(kind, **TABLE_SIZES | {"max_len": 120})
    acoustic_model.config["linguistic_unit"] = {"speaker_list": ",".join(NAMES)}
    generator = vocoder(**({} if kind == "plain" else NSF))
    generator.config["audio_config"] = {"sampling_rate": RATE}
    return acoustic_model, generator


def embedding(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(6).astype(np.float32)


def voice(folder: Path, kind: str = "plain") -> Path:
    """The checkpoint folder of a voice: `am`, `voc`, for SE the embeddings of NAMES; returns the folder."""
    acoustic_model, generator = voice_networks(kind)
    save_acoustic(folder / "am", acoustic_model)
    save_vocoder(folder / "voc", generator)
    if kind == "se":
        (folder / "am" / "speakers").mkdir()
        for seed, name in enumerate(NAMES):
            np.save(folder / "am" / "speakers" / f"{name}.npy", embedding(seed))
    return folder
