"""Draft models for speculative decoding: some layers of the model, as they are or after training.

A trained draft is a file of its layers and its last norm. The embedding, which is also the head, is the model's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from utils.models import llm

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

SCALE = ".scale"  # the end of the name of a matrix's scales


def write_draft(checkpoint: Path, share: float, folder: Path) -> None:
    """Write the IR of a draft at 8 bits: a share of the layers of a transformers folder, and the rest of it.

    Layers that change their input least are left out, by the cosine of input and output on the calibration text. (That
    is the measure "block influence" of ShortGPT, arXiv 2403.03853.) Raises ValueError for a share outside 0 to 1.
    """
    import torch

    if not 0 < share <= 1:
        raise ValueError(f"A draft with a share of {share} of the layers is not possible. Choose a number from 0 to 1.")
    network = load(checkpoint)
    text = torch.from_numpy(llm.tokenize(checkpoint, "calibration")[:, :256])
    with torch.no_grad():
        states = network(text, output_hidden_states=True).hidden_states  # one more than layers, each [1, tokens, width]
    changes = [1 - torch.cosine_similarity(a, b, dim=-1).mean().item() for a, b in pairwise(states)]
    most = sorted(range(len(changes)), key=changes.__getitem__)[len(changes) - round(share * len(changes)) :]
    prune(network, sorted(most))
    _write(network, checkpoint, folder)


def write_trained(checkpoint: Path, weights: Path, folder: Path) -> None:
    """Write the IR of a trained draft at 8 bits. checkpoint: of the model; weights: a file of `packed` tensors."""
    _write(trained(checkpoint, weights), checkpoint, folder)


def trained(checkpoint: Path, weights: Path) -> PreTrainedModel:
    """A trained draft in PyTorch, with the embedding of the model in `checkpoint`.

    Raises ValueError where the file is missing or is that of another model.
    """
    from safetensors.torch import load_file

    if not weights.is_file():
        raise ValueError(f"{weights} is missing. `python -m notebooks.llm_methods.training draft` trains the draft.")
    tensors = unpacked(load_file(weights))
    network = load(checkpoint)
    count = len({name.split(".")[1] for name in tensors if name.startswith("layers.")})
    prune(network, range(min(count, len(network.model.layers))))  # whichever: all their weights are replaced
    wanted = {name: x.shape for name, x in network.model.state_dict().items() if not name.startswith("embed_tokens.")}
    if wanted != {name: x.shape for name, x in tensors.items()}:
        raise ValueError(f"{weights} is not a draft of the model in {checkpoint}. Train one for it.")
    network.model.load_state_dict(tensors, strict=False)
    return network


def load(checkpoint: Path) -> PreTrainedModel:
    """The model of a transformers folder in FP32."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()


def prune(network: PreTrainedModel, layers: Sequence[int]) -> None:
    """Leave only these layers in a model, by their numbers from 0."""
    import torch

    network.model.layers = torch.nn.ModuleList(network.model.layers[i] for i in layers)
    network.config.num_hidden_layers = len(layers)
    for i, layer in enumerate(network.model.layers):
        layer.self_attn.layer_idx = i  # its place in the cache
    kinds = getattr(network.config, "layer_types", None)
    if kinds:
        network.config.layer_types = [kinds[i] for i in layers]


def packed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors for a file: a matrix [O, I] as 8-bit integers with a scale for each output [O, 1], all else in FP16."""
    import torch

    made = {}
    for name, tensor in tensors.items():
        if tensor.ndim == 2:
            scales = (tensor.abs().amax(1, keepdim=True) / 127).clamp_min(1e-6).half()  # [O, 1]
            made[name + SCALE] = scales
            made[name] = (tensor / scales.float()).round().clamp(-127, 127).to(torch.int8)
        else:
            made[name] = tensor.half()
    return made


def unpacked(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The FP32 tensors that `packed` stored."""
    names = [name for name in tensors if not name.endswith(SCALE)]
    scales = {name: tensors[name + SCALE].float() if name + SCALE in tensors else 1.0 for name in names}
    return {name: tensors[name].float() * scales[name] for name in names}


def _write(network: PreTrainedModel, checkpoint: Path, folder: Path) -> None:
    """Export a model with the tokenizer of a transformers folder, and compress it to 8 bits."""
    from transformers import AutoTokenizer

    with TemporaryDirectory() as scratch:
        small, base = Path(scratch, "transformers"), Path(scratch, "ir")
        network.save_pretrained(small)
        AutoTokenizer.from_pretrained(checkpoint).save_pretrained(small)
        llm.to_ir(small, base)
        llm.compress(base, {"mode": "INT8_ASYM"}, folder)
