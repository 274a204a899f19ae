"""A GGUF file of a language model to a transformers folder.

transformers reads the configuration and the tensors of the file. It silently drops keys and tensors that it does not
know, such as those of scaled rotary embeddings. So this module completes the configuration, and raises an error for
what would be lost. The tokenizer is built from the file's own vocabulary (`gguf_tokenizer`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from utils.models import gguf_tokenizer

if TYPE_CHECKING:
    from gguf import GGUFReader
    from transformers import PretrainedConfig, PreTrainedModel

# Architectures whose logits the tests compare with the original network: keys that change their numbers and are read.
ARCHITECTURES = {
    "llama": (),
    "qwen2": (),
    "qwen2moe": (),
    "qwen3": (),
    "qwen3moe": (),
    "phi3": ("attention.sliding_window",),
    "gemma2": ("attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping"),
    "gemma3": ("attention.sliding_window",),
    "gpt2": (),
    "starcoder2": (),
    "stablelm": (),
    "nemotron": (),
    "lfm2": (),
}
ENCODERS = (
    "bert",
    "modern-bert",
    "nomic-bert",
    "nomic-bert-moe",
    "neo-bert",
    "jina-bert-v2",
    "jina-bert-v3",
    "t5encoder",
)
# Keys after the architecture's name: the attribute of the configuration which transformers does not fill.
ATTRIBUTES = {
    "attention.layer_norm_epsilon": "norm_eps",
    "attention.layer_norm_rms_epsilon": "norm_eps",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "context_length": "n_positions",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "feed_forward_length": "n_inner",
    "final_logit_softcapping": "final_logit_softcapping",
}
# Keys that change the numbers of a network: the values at which they do not.
NEUTRAL = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.scale": (0,),
    "attention.sliding_window": (0,),
    "attn_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "final_logit_softcapping": (0,),
    "logit_scale": (0, 1),
    "residual_scale": (0, 1),
    "rope.scaling.attn_factor": (0, 1),
    "rope.scaling.yarn_attn_factor": (0, 1),
    "rope.scaling.yarn_ext_factor": (-1, 1),
    "rope.scaling.yarn_log_multiplier": (0,),
}
LARGEST_LAYERS = {"gemma2": 46, "gemma3": 62}  # layers of the largest model of the architecture
ROPE_FACTORS = "rope_freqs.weight"  # a factor for the wavelength of each pair of dimensions; of Llama 3.1 and later
LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
INSTEAD = "Take the model's transformers folder instead of this file."


def to_transformers(gguf: Path, folder: Path) -> None:
    """Write a GGUF file as a transformers folder: FP16 safetensors, configuration, tokenizer.

    Raises ValueError that names the file, the key or tensor, and the way out, for a file that is damaged or that cannot
    be represented exactly (but for the rounding to FP16).
    """
    reader = open_gguf(gguf)
    metadata = {key: field.contents() for key, field in reader.fields.items()}
    architecture = check(metadata, gguf)
    vocabulary = gguf_tokenizer.Vocabulary(metadata, gguf)
    tokenizer = gguf_tokenizer.build(vocabulary)
    model = read_model(reader, configuration(metadata, reader, vocabulary, gguf), architecture, gguf)
    ends = vocabulary.ends
    special = {f"{name}_token_id": number for name, number in vocabulary.special.items()}
    model.generation_config.update(**special | {"eos_token_id": ends if len(ends) > 1 else special.get("eos_token_id")})
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def open_gguf(file: Path) -> GGUFReader:
    """The reader of a file. Raises ValueError for one that is not GGUF or is cut off."""
    from gguf import GGUFReader

    try:
        return GGUFReader(file)
    except (ValueError, IndexError, KeyError) as error:
        raise ValueError(f"{file} cannot be read as GGUF ({error}). Download or convert it again.") from error


def check(metadata: Mapping, file: Path) -> str:
    """The architecture of a file. Raises ValueError for what is not a whole language model of a known architecture."""
    if (parts := metadata.get("split.count", 0)) > 1:
        raise ValueError(
            f"{file} is one of {parts} parts (split.count). Join them: llama-gguf-split --merge FIRST_PART whole.gguf"
        )
    if (kind := metadata.get("general.type", "model")) != "model":
        raise ValueError(f"{file}: general.type is {kind!r}, not a model. Take the file of the whole model.")
    architecture = metadata.get("general.architecture")
    if architecture in ENCODERS:
        raise ValueError(
            f"{file}: general.architecture is {architecture!r}, an encoder. Take a model that generates text."
        )
    if architecture not in ARCHITECTURES:
        raise ValueError(
            f"{file}: general.architecture is {architecture!r}. Known are: {', '.join(ARCHITECTURES)}. {INSTEAD}"
        )
    for key, neutral in NEUTRAL.items():
        value = metadata.get(f"{architecture}.{key}", neutral[0])
        unlimited = key == "attention.sliding_window" and value >= metadata.get(f"{architecture}.context_length", 0)
        if value not in neutral and key not in ARCHITECTURES[architecture] and not unlimited:
            raise ValueError(f"{file}: {architecture}.{key} is {value}, which transformers does not read. {INSTEAD}")
    return architecture


def configuration(
    metadata: Mapping, reader: GGUFReader, vocabulary: gguf_tokenizer.Vocabulary, file: Path
) -> PretrainedConfig:
    """The configuration of the network, completed by the keys that transformers does not read."""
    from transformers import AutoConfig, LlamaConfig

    architecture = metadata["general.architecture"]
    own = {key.removeprefix(f"{architecture}."): value for key, value in metadata.items()}
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    if config.model_type == "mistral":  # transformers goes by the name "mistral"; the tensors are those of llama
        config = LlamaConfig.from_dict(config.to_dict() | {"model_type": "llama"})
    for key, attribute in ATTRIBUTES.items():
        if key in own and hasattr(config, attribute) and (key not in NEUTRAL or key in ARCHITECTURES[architecture]):
            setattr(config, attribute, own[key])
    if hasattr(config, "head_dim"):
        config.head_dim = own.get("attention.key_length", config.hidden_size // config.num_attention_heads)
    rows = int(tensors["token_embd.weight"].shape[1]) if "token_embd.weight" in tensors else 0
    if rows != vocabulary.size:
        raise ValueError(
            f"{file}: token_embd.weight has {rows} rows, but tokenizer.ggml.tokens has {vocabulary.size}. The file is "
            "damaged: convert it again."
        )
    config.vocab_size = rows
    for name in ("bos", "eos", "pad"):
        setattr(config, f"{name}_token_id", vocabulary.special.get(name))
    for attribute, names in {"attention_bias": ("q", "k", "v", "output"), "mlp_bias": ("gate", "up", "down")}.items():
        block = "attn" if attribute == "attention_bias" else "ffn"
        if hasattr(config, attribute):
            setattr(config, attribute, all(f"blk.0.{block}_{name}.bias" in tensors for name in names))
    if architecture in LARGEST_LAYERS:  # these models of 27B scale attention by another size than the others
        largest = config.num_hidden_layers == LARGEST_LAYERS[architecture]
        config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads if largest else config.head_dim
    if getattr(config, "rope_parameters", None):
        factors = tensors[ROPE_FACTORS].data if ROPE_FACTORS in tensors else None
        config.rope_parameters = rope(config, own, factors, file)
    return config


def rope(config: PretrainedConfig, own: Mapping, factors: np.ndarray | None, file: Path) -> dict:
    """The parameters of the rotary embedding, which transformers reads without its scaling.

    own: the file's keys without the architecture's name; factors: of ROPE_FACTORS [head_dim / 2].
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    by_layer = "full_attention" in config.rope_parameters  # gemma3: layers with a window have an embedding of their own
    parameters = dict(config.rope_parameters["full_attention"] if by_layer else config.rope_parameters)
    parameters["rope_theta"] = own.get("rope.freq_base", 10_000.0)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if own.get("attention.key_length", size) != size or own.get("attention.value_length", size) != size:
        raise ValueError(f"{file}: attention.key_length and attention.value_length differ from {size}. {INSTEAD}")
    rotated = own.get("rope.dimension_count", size)
    if "partial_rotary_factor" in parameters:
        parameters["partial_rotary_factor"] = rotated / size
    elif rotated != size:
        raise ValueError(f"{file}: rope.dimension_count is {rotated} of {size} dimensions of a head. {INSTEAD}")
    kind = own.get("rope.scaling.type", "linear")
    factor = own.get("rope.scaling.factor", own.get("rope.scale_linear", 1))
    if kind == "yarn":
        length = own.get("rope.scaling.original_context_length", config.max_position_embeddings)
        parameters |= {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": length}
        for name in ("beta_fast", "beta_slow"):
            if f"rope.scaling.yarn_{name}" in own:
                parameters[name] = own[f"rope.scaling.yarn_{name}"]
    elif kind == "linear" and factor not in (0, 1):
        parameters |= {"rope_type": "linear", "factor": factor}
    elif kind not in ("none", "linear"):
        raise ValueError(f"{file}: rope.scaling.type is {kind!r}. Known are: none, linear, yarn. {INSTEAD}")
    scaled_by_tensor = factors is not None and (factors != 1).any()
    plain_only = config.model_type == "phi3" or (by_layer and scaled_by_tensor)
    if plain_only and (scaled_by_tensor or parameters.get("rope_type", "default") != "default"):
        raise ValueError(f"{file}: the scaling of the rotary embedding of {config.model_type} is not known. {INSTEAD}")
    if by_layer:
        local = {"rope_type": "default", "rope_theta": own.get("rope.freq_base_swa", 10_000.0)}
        return {"full_attention": parameters, "sliding_attention": local}
    if not scaled_by_tensor:
        return parameters
    scaled = copy.deepcopy(config)
    scaled.rope_parameters = parameters | {"rope_type": "llama3", "factor": float(factors.max())} | LLAMA3_ROPE
    found = ROPE_INIT_FUNCTIONS["llama3"](scaled, "cpu")[0].numpy()  # [head_dim / 2] radians a token
    plain = parameters["rope_theta"] ** (-np.arange(0, size, 2) / size)
    if factor not in (0, 1) or found.shape != factors.shape or not np.allclose(plain / found, factors, rtol=1e-4):
        raise ValueError(f"{file}: {ROPE_FACTORS} differs from Llama 3.1's scaling of the rotary embedding. {INSTEAD}")
    return scaled.rope_parameters


def read_model(reader: GGUFReader, config: PretrainedConfig, architecture: str, file: Path) -> PreTrainedModel:
    """The network with the file's weights in FP16.

    Raises ValueError for a tensor that the network or the file lacks, and for a type that cannot be dequantized.
    """
    import torch
    from gguf import dequantize
    from transformers import AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config)
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=config.to_dict())
    names = get_gguf_hf_weights_map(network, processor)  # in GGUF: in transformers
    gathered = {"tensors": {}}  # by names in transformers; the processor itself puts experts here
    unread = []
    for tensor in reader.tensors:
        try:
            weights = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise ValueError(
                f"{file}: {tensor.name} has the type {tensor.tensor_type.name}, which cannot be dequantized. Take a "
                "file of another type, such as Q8_0 or Q4_K_M."
            ) from error
        read = processor.process(weights, tensor.name, tensor_key_mapping=names, parsed_parameters=gathered)
        if read.name in names:
            gathered["tensors"][names[read.name]] = torch.from_numpy(np.array(read.weights)).half()
        elif read.name not in (None, ROPE_FACTORS):
            unread.append(tensor.name)
    if unread:
        raise ValueError(f"{file}: transformers does not read {_listed(unread)} of {architecture!r}. {INSTEAD}")
    state, shapes = {name: weights.half() for name, weights in gathered["tensors"].items()}, network.state_dict()
    for name, weights in state.items():
        if weights.shape != shapes[name].shape:
            raise ValueError(
                f"{file}: {name} has the shape {[*weights.shape]}, but the keys say {[*shapes[name].shape]}. "
                "The file is damaged: convert it again."
            )
        if not weights.isfinite().all():
            raise ValueError(f"{file}: {name} has numbers that FP16 cannot hold. {INSTEAD}")
    model, report = type(network).from_pretrained(
        None, config=config, state_dict=state, dtype=torch.float16, output_loading_info=True
    )
    if report["missing_keys"]:
        raise ValueError(
            f"{file} has no weights for {_listed(sorted(report['missing_keys']))}. Download or convert it again."
        )
    return model


def _listed(names: list[str]) -> str:
    """The first three names, and how many there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"
