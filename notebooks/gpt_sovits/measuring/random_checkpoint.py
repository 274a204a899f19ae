"""A checkpoint of random weights at the size of the released v2, in the collection's layout, for measuring speed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn
from transformers import BertConfig, BertModel, HubertConfig, HubertModel

from notebooks.gpt_sovits.network.checkpoint import save
from notebooks.gpt_sovits.network.sovits import SynthesizerTrn
from notebooks.gpt_sovits.network.t2s import Text2SemanticDecoder

# fmt: off
T2S = {  # config of the released s1: 77.6 million weights
    "model": {
        "vocab_size": 1025, "EOS": 1024, "phoneme_vocab_size": 732, "embedding_dim": 512, "hidden_dim": 512,
        "head": 16, "linear_units": 2048, "n_layer": 24,
    }
}
SOVITS = {  # config of the released s2: 40.8 million weights without what only training needs
    "data": {"sampling_rate": 32000, "filter_length": 2048, "win_length": 2048, "hop_length": 640},
    "model": {
        "version": "v2", "inter_channels": 192, "hidden_channels": 192, "filter_channels": 768, "n_heads": 2,
        "n_layers": 6, "kernel_size": 3, "gin_channels": 512, "upsample_initial_channel": 512,
        "upsample_rates": [10, 8, 2, 2, 2], "upsample_kernel_sizes": [16, 16, 8, 2, 2],
        "resblock_kernel_sizes": [3, 7, 11], "resblock_dilation_sizes": [[1, 3, 5]] * 3,
    },
}
BERT = {  # chinese-roberta-wwm-ext-large
    "vocab_size": 21128, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
    "intermediate_size": 4096,
}
# fmt: on
RELEASED: dict[str, Callable[[], nn.Module]] = {  # part of a checkpoint: its network
    "t2s": lambda: Text2SemanticDecoder(T2S),
    "sovits": lambda: SynthesizerTrn(SOVITS),
    "hubert": lambda: HubertModel(HubertConfig()),  # chinese-hubert-base has transformers' defaults
    "bert": lambda: BertModel(BertConfig(**BERT), add_pooling_layer=False),
}
SCALES = ("weight", "gamma", "alpha", "original0")  # vectors whose entries are about 1
WEIGHT_NORM_LENGTH = "original0"


def random_checkpoint(folder: Path, networks: Mapping[str, Callable[[], nn.Module]] = RELEASED) -> Path:
    """Write the checkpoint folder of networks with random weights, BERT's vocabulary with special tokens only.

    Returns the folder. One network is in memory at a time, in FP32.
    """
    for part, build in networks.items():
        with torch.device("meta"):
            network = build()
        save(folder / part, _filled(network.to_empty(device="cpu")))
    if "bert" in networks:
        vocabulary = {"model": {"vocab": {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2}}}
        (folder / "bert" / "tokenizer.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    return folder


@torch.no_grad()
def _filled(network: nn.Module) -> nn.Module:
    """The network with random weights of a scale with which activations neither grow from layer to layer nor vanish."""
    generator = torch.Generator().manual_seed(0)
    for name, tensor in network.state_dict().items():
        leaf = name.rpartition(".")[2]
        if tensor.ndim > 1 and leaf != WEIGHT_NORM_LENGTH:
            tensor.normal_(0, tensor[0].numel() ** -0.5, generator=generator)
        else:
            tensor.normal_(float(leaf in SCALES), 0.1, generator=generator)
    return network
