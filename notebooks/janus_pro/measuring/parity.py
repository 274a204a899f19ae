"""Each sub-model in OpenVINO, in FP32, compared with PyTorch on the same weights and inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import torch

from notebooks.janus_pro import convert
from notebooks.janus_pro.data import held_out
from notebooks.janus_pro.network.reference import Reference
from notebooks.janus_pro.pipeline import preprocess
from utils import compare
from utils.models import llm

TOLERANCE = 1e-3
TEXT_TOKENS = 40  # of the random embeddings that the language model reads, in two rows


@torch.inference_mode()
def parity(folder: Path, reference: Reference, device: str = "CPU") -> list[dict]:
    """A parity row of each sub-model of an IR folder."""
    model, config = reference.model, reference.model.config
    network, rng = model.model, np.random.default_rng(0)
    picture, _ = held_out("shape", 1)[0]
    pixels = torch.from_numpy(preprocess(picture, config.vision_config.image_size))  # [1, 3, S, S]
    words = torch.from_numpy(rng.integers(0, config.text_config.vocab_size, (2, TEXT_TOKENS)))
    drawn = torch.from_numpy(rng.integers(0, config.vq_config.num_embeddings, (1, reference.rows**2)))
    text = torch.from_numpy(rng.standard_normal((2, TEXT_TOKENS, config.text_config.hidden_size), np.float32))
    mask, places = torch.ones(2, TEXT_TOKENS, dtype=int), torch.arange(TEXT_TOKENS)[None].repeat(2, 1)
    rows = torch.arange(2, dtype=torch.int32)

    features = network.vision_model(pixels).last_hidden_state
    hidden = network.language_model(inputs_embeds=text).last_hidden_state
    last = hidden[:, -1]
    expected = {  # sub-model: its inputs, PyTorch's output
        "vision": ([pixels], features),
        "aligner": ([features], network.aligner(features)),
        "text_embeddings": ([words], model.get_input_embeddings()(words)),
        "language": ([text, mask, places, rows], hidden),
        "text_head": ([last], model.lm_head(last)),
        "image_head": ([last], network.generation_head(last)),
        "generation_embeddings": ([drawn], model.prepare_embeddings_for_image_generation(drawn)),
        "image_decoder": ([drawn], network.vqmodel.decode(drawn)),
    }
    core, found = ov.Core(), []
    for part, (inputs, output) in expected.items():
        compiled = core.compile_model(folder / convert.xml(part), device, llm.FP32_PROPERTIES)
        ours = compiled([x.numpy() for x in inputs])[0]
        found.append(compare.parity(part.replace("_", " "), ours, output, TOLERANCE))
    return found
