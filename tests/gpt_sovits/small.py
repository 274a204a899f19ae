"""Small random networks of every part, and checkpoints of them, for the tests of this room."""

import json
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import BertConfig, BertModel, HubertConfig, HubertModel

from notebooks.gpt_sovits.network.checkpoint import save
from notebooks.gpt_sovits.network.sovits import SynthesizerTrn
from notebooks.gpt_sovits.network.t2s import Text2SemanticDecoder
from notebooks.gpt_sovits.training import hubert as train_hubert

WIDTH, PHONES, CODES = 24, 40, 32  # of HuBERT and BERT; symbols; tokens
T2S = {
    "model": {
        **{"vocab_size": CODES + 1, "EOS": CODES, "phoneme_vocab_size": PHONES, "bert_dim": WIDTH},
        **{"embedding_dim": 32, "hidden_dim": 32, "head": 4, "linear_units": 48, "n_layer": 3},
    }
}
DATA = {"sampling_rate": 1000, "filter_length": 64, "win_length": 64, "hop_length": 20}
MODEL = {
    **{"version": "v2", "symbols": PHONES, "style_bins": 22, "ssl_channels": WIDTH, "codes": CODES},
    **{"inter_channels": 12, "hidden_channels": 16, "filter_channels": 24, "n_heads": 2, "n_layers": 2},
    **{"kernel_size": 3, "gin_channels": 20, "mrte_channels": 20, "mrte_heads": 4, "style_channels": 12},
    **{"flow_layers": 4, "posterior_layers": 3, "upsample_initial_channel": 32, "upsample_rates": [5, 2, 2]},
    **{"upsample_kernel_sizes": [9, 4, 2], "resblock_kernel_sizes": [3, 5], "resblock_dilation_sizes": [[1, 3]] * 2},
}
HUBERT = {
    **{"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32},
    **{"conv_dim": [8] * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4},
    "conv_kernel": train_hubert.KERNELS,
}
BERT = {
    **{"vocab_size": 50, "hidden_size": WIDTH, "num_hidden_layers": 4, "num_attention_heads": 4},
    **{"intermediate_size": 32, "max_position_embeddings": 64},
}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"，。.我你好天今气很大家早上"]  # that BERT knows
SCALES = ("weight", "gamma", "alpha", "original0")  # are about 1


def randomised(network: nn.Module, seed: int = 0) -> nn.Module:
    """The network with weights drawn from a seed, in evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            leaf = name.rpartition(".")[2]
            if tensor.ndim > 1 and leaf != "original0":
                tensor.normal_(0, tensor[0].numel() ** -0.5, generator=generator)
            else:
                tensor.normal_(float(leaf in SCALES), 0.1, generator=generator)
    return network.eval()


def t2s(seed: int = 0) -> Text2SemanticDecoder:
    return randomised(Text2SemanticDecoder(T2S), seed)


def synthesizer(posterior: bool = False, **changes) -> SynthesizerTrn:
    return randomised(SynthesizerTrn({"data": DATA, "model": MODEL | changes}, posterior))


def hubert() -> HubertModel:
    return randomised(HubertModel(HubertConfig(**HUBERT)))


def bert() -> BertModel:
    """All layers of it."""
    return randomised(BertModel(BertConfig(**BERT), add_pooling_layer=False))


def checkpoint(folder: Path, **changes) -> Path:
    """Write a checkpoint folder of the collection's layout; changes: of the synthesizer."""
    for part, network in {"t2s": t2s(), "sovits": synthesizer(**changes), "hubert": hubert(), "bert": bert()}.items():
        save(folder / part, network)
    vocabulary = {"model": {"vocab": {word: i for i, word in enumerate(WORDS)}}}
    (folder / "bert" / "tokenizer.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    return folder


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def ids(count: int, most: int, seed: int = 0) -> torch.Tensor:
    """[1, count] int64 below `most`."""
    return torch.from_numpy(np.random.default_rng(seed).integers(0, most, (1, count)))
