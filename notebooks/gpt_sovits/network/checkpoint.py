"""GPT-SoVITS checkpoints, read strictly and without running code from them.

The authors' files (and those that their program fine-tunes) are `torch.save` of {"weight", "config", "info"}: s1*.ckpt
is the token decoder (t2s), s2G*.pth the synthesizer. HuBERT and BERT are folders of transformers. A folder of the
collection has `t2s`, `sovits`, `hubert` and, where there is Chinese, `bert`, each with config.json and
model.safetensors in FP16, under the same names of tensors but weight norm folded.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AttentionInterface, BertConfig, BertModel, HubertConfig, HubertModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.utils import logging

from notebooks.gpt_sovits.network.sovits import SynthesizerTrn
from notebooks.gpt_sovits.network.t2s import Text2SemanticDecoder
from notebooks.gpt_sovits.pipeline.constants import VERSIONS
from utils.models.tensors import listed, read_json, save_half, tensor_mismatches
from utils.weights import load_torch

CONFIG, WEIGHTS, PICKLED = "config.json", "model.safetensors", "pytorch_model.bin"
PARTS = ("t2s", "sovits", "hubert", "bert")
RELEASED_FOLDERS = {"hubert": "chinese-hubert-base", "bert": "chinese-roberta-wwm-ext-large"}
RELEASED_FILES = {"t2s": "*.ckpt", "sovits": "*.pth"}
# the first two bytes of a file: of torch.save, of versions that this network is not for, of v2Pro and v2ProPlus
ZIP_MAGIC = b"PK"
UNSUPPORTED_MAGIC = {b"02": "v3", b"03": "v3", b"04": "v4"}
V2PRO_MAGIC = (b"05", b"06")
WEIGHT_NORM_KEYS = (
    ("weight_g", "weight_v"),
    ("parametrizations.weight.original0", "parametrizations.weight.original1"),
)
CODEBOOK_STATE = re.compile(r"quantizer\.vq\.layers\.0\._codebook\.(inited|cluster_size|embed_avg)")  # training's
UNUSED_LAYERS = 2  # BERT's last ones: its features are hidden_states[-3]
UNUSED_HEADS = re.compile(r"pooler\..*|cls\..*|embeddings\.position_ids")
UNMASKED = "sdpa_unmasked"  # attention as usual; transformers makes masks only for the names it knows, untraceable ones
AttentionInterface.register(UNMASKED, sdpa_attention_forward)


class HParams:
    """A stand-in for `utils.HParams`, the authors' class of settings, which some files hold pickled."""


class Restored(io.FileIO):
    """A checkpoint file whose first two bytes read as those of a zip archive."""

    def __str__(self) -> str:
        return str(self.name)

    def readinto(self, buffer) -> int:
        start = self.tell()
        count = super().readinto(buffer)
        for i in range(start, min(len(ZIP_MAGIC), start + count)):
            memoryview(buffer)[i - start] = ZIP_MAGIC[i]
        return count

    def read(self, size: int = -1) -> bytes:
        start = self.tell()
        content = ZIP_MAGIC[start:] + super().read(size)[max(0, len(ZIP_MAGIC) - start) :]
        return content if size < 0 else content[:size]


def load_t2s(path: str | Path) -> Text2SemanticDecoder:
    """The token decoder of a released file or of a folder that `save` wrote, ready for inference.

    Raises ValueError when the file is missing or damaged, is another model's, or its tensors do not fit the network:
    the message lists tensors that are missing, unknown, of another shape or not finite.
    """
    config, tensors = _stored(Path(path))
    tensors = {key.removeprefix("model."): x for key, x in tensors.items()}
    return _filled(lambda: Text2SemanticDecoder({"model": dict(config["model"])}), tensors, path)


def load_sovits(path: str | Path) -> SynthesizerTrn:
    """The synthesizer of a released file (v1, v2, v2Pro) or of a folder that `save` wrote, ready for inference.

    It has the posterior encoder if that is in the file. Raises ValueError as `load_t2s` does.
    """
    config, tensors = _stored(Path(path))
    tensors = folded(tensors)

    def build() -> SynthesizerTrn:
        model = dict(config["model"])
        model["version"] = version(tensors, model)
        posterior = any(key.startswith("enc_q.") for key in tensors)
        return SynthesizerTrn({"data": dict(config["data"]), "model": model}, posterior)

    return _filled(build, tensors, path, CODEBOOK_STATE)


def version(tensors: Mapping[str, Tensor], model: Mapping) -> str | None:
    """The version of a synthesizer, by its table of phonemes and its speaker embedding.

    model: its configuration, which decides where it has a number of phonemes of its own ("symbols").
    """
    if "symbols" in model:
        return model.get("version")
    if "sv_emb.weight" in tensors:
        return "v2Pro"
    rows = len(tensors.get("enc_p.text_embedding.weight", ()))
    return next((name for name, symbols in VERSIONS.items() if symbols == rows), None)


def load_hubert(folder: str | Path) -> HubertModel:
    """HuBERT of a transformers folder, ready for inference. Raises ValueError as `load_t2s` does."""
    config, tensors = _stored(Path(folder))
    return hubert(config, tensors, folder)


def load_bert(folder: str | Path) -> BertModel:
    """BERT of a transformers folder, ready for inference: its last states are the features of GPT-SoVITS.

    They are hidden_states[-3], so the last two layers are left out. Raises ValueError as `load_t2s` does.
    """
    config, tensors = _stored(Path(folder))
    return bert(config, tensors, folder)


def hubert(config: Mapping, tensors: Mapping[str, Tensor], source: str | Path) -> HubertModel:
    """HuBERT of a configuration and tensors under the names of any release; source: its name in error messages."""
    tensors = {key.removeprefix("hubert."): x for key, x in tensors.items()}
    for old, new in zip(*WEIGHT_NORM_KEYS, strict=True):
        tensors = {re.sub(rf"\.{old}$", f".{new}", key): x for key, x in tensors.items()}
    return _library(HubertModel, HubertConfig.from_dict(dict(config)), tensors, source, optional=("masked_spec_embed",))


def bert(config: Mapping, tensors: Mapping[str, Tensor], source: str | Path) -> BertModel:
    """BERT without its last two layers, of a configuration and tensors with or without heads on top."""
    tensors = {key.removeprefix("bert."): x for key, x in tensors.items()}
    for old, new in (("gamma", "weight"), ("beta", "bias")):  # of layer norms, as TensorFlow calls them
        tensors = {re.sub(rf"LayerNorm\.{old}$", f"LayerNorm.{new}", key): x for key, x in tensors.items()}
    settings = BertConfig.from_dict(dict(config))
    depth = settings.num_hidden_layers
    settings.num_hidden_layers = depth - UNUSED_LAYERS
    layers = "|".join(str(depth - 1 - i) for i in range(UNUSED_LAYERS))
    unused = re.compile(rf"{UNUSED_HEADS.pattern}|encoder\.layer\.({layers})\..*")
    network = _library(BertModel, settings, tensors, source, unused, add_pooling_layer=False)
    network.config.num_hidden_layers = depth  # as its file says
    return network


def save(folder: str | Path, network: nn.Module) -> Path:
    """Write a network as FP16 model.safetensors and config.json, as the loaders read them; returns the folder.

    The posterior encoder is left out, as in the authors' fine-tuned files. Existing files are replaced once both are
    written. Raises ValueError, and changes nothing, when a weight is not finite in FP16.
    """
    tensors = {key: x for key, x in network.state_dict().items() if not key.startswith("enc_q.")}
    config = network.config if isinstance(network.config, dict) else network.config.to_diff_dict()
    return save_half(folder, {WEIGHTS: tensors}, {CONFIG: json.dumps(config, indent=1) + "\n"})


def find(checkpoint: str | Path) -> dict[str, Path]:
    """The paths of the parts of a checkpoint folder, in the collection's or the authors' layout; `bert` may be missing.

    Raises ValueError when another is missing, or there are several.
    """
    checkpoint = Path(checkpoint)
    paths = {part: [checkpoint / part] for part in PARTS if (checkpoint / part / CONFIG).is_file()}
    for part, name in RELEASED_FOLDERS.items():
        paths.setdefault(part, sorted(file.parent for file in checkpoint.rglob(f"{name}/{CONFIG}")))
    for part, pattern in RELEASED_FILES.items():
        files = (file for file in checkpoint.rglob(pattern) if not file.name.startswith("s2D"))  # the discriminator's
        paths.setdefault(part, sorted(files))
    if missing := [part for part in PARTS if not paths[part] and part != "bert"]:
        names = RELEASED_FOLDERS | RELEASED_FILES
        wanted = " and ".join(f"{part} ({names[part]})" for part in missing)
        raise ValueError(f"{checkpoint} lacks {wanted}. Name the folder of a whole GPT-SoVITS checkpoint.")
    if several := {part: files for part, files in paths.items() if len(files) > 1}:
        named = "; ".join(f"{part}: {listed([file.name for file in files])}" for part, files in several.items())
        raise ValueError(f"{checkpoint} holds more than one of a part ({named}). Keep one of each.")
    return {part: paths[part][0] for part in PARTS if paths[part]}


def folded(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors with weight norm folded: length times direction (Salimans and Kingma, 2016), under old names or new.

    A length is the norm over all axes on which it has one entry. Pairs that do not fit stay as they are.
    """
    plain = dict(tensors)
    for length, direction in WEIGHT_NORM_KEYS:
        for key in [key for key in plain if key.endswith(f".{direction}")]:
            name = key.removesuffix(direction)
            v, g = plain[key].float(), plain.get(name + length)
            if g is not None and g.ndim == v.ndim and all(a in (1, b) for a, b in zip(g.shape, v.shape, strict=True)):
                axes = [i for i, size in enumerate(g.shape) if size == 1]
                plain[f"{name}weight"] = v * (g.float() / v.norm(dim=axes, keepdim=True))
                del plain[key], plain[name + length]
    return plain


# --- the details ------------------------------------------------------------------------------------------------


def _stored(path: Path) -> tuple[dict, dict[str, Tensor]]:
    """Configuration and tensors of a released file, or of a folder with safetensors or a pytorch_model.bin."""
    if not path.is_dir():
        return _released(path)
    config = read_json(path / CONFIG, "GPT-SoVITS")
    if not (path / WEIGHTS).is_file() and (path / PICKLED).is_file():
        return config, _tensors(load_torch(path / PICKLED), path / PICKLED)
    try:
        return config, load_file(path / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path / WEIGHTS} cannot be read whole ({error}). Fetch it again.") from error


def _released(path: Path) -> tuple[dict, dict[str, Tensor]]:
    """Configuration and tensors of a released file."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(ZIP_MAGIC))
        if magic in UNSUPPORTED_MAGIC:
            version = UNSUPPORTED_MAGIC[magic]
            raise ValueError(f"{path} is a SoVITS {version}, a network that is not here. Take v1, v2 or v2Pro.")
        with Restored(path) as restored, torch.serialization.safe_globals([(HParams, "utils.HParams")]):
            stored = load_torch(restored if magic in V2PRO_MAGIC else path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error}). Name a GPT-SoVITS file, or a folder with one.") from error
    config = _plain(stored.get("config")) if isinstance(stored, dict) else None
    if not isinstance(config, dict) or "weight" not in stored:
        raise ValueError(f"{path} has no weight and config. Name an s1 .ckpt or s2G .pth file of GPT-SoVITS.")
    return config, _tensors(stored["weight"], path)


def _tensors(stored: object, source: Path) -> dict[str, Tensor]:
    if not isinstance(stored, dict) or not stored or not all(isinstance(x, Tensor) for x in stored.values()):
        raise ValueError(f"{source} holds no tensors by name. Is it the file of another model?")
    return stored


def _plain(settings: object) -> object:
    """Objects of settings as dictionaries."""
    if isinstance(settings, HParams):
        settings = vars(settings)
    return {key: _plain(x) for key, x in settings.items()} if isinstance(settings, dict) else settings


def _check(expected: Mapping, tensors: Mapping[str, Tensor], source: str | Path, **allowed) -> None:
    """Raise ValueError, which lists all differences, unless the tensors are those expected and finite."""
    not_finite = [key for key in expected if key in tensors and not torch.isfinite(tensors[key]).all()]
    shapes = [{key: x.shape for key, x in state.items()} for state in (expected, tensors)]
    if mismatches := tensor_mismatches(*shapes, not_finite=not_finite, **allowed):
        raise ValueError(
            f"{source} is no checkpoint of the network that its configuration describes. Tensors {mismatches}. "
            "Fetch it again, or name the file of the right part and version."
        )


def _filled(
    build: Callable[[], nn.Module],
    tensors: Mapping[str, Tensor],
    source: str | Path,
    unused: re.Pattern | None = None,
) -> nn.Module:
    """The network that `build` returns, with the tensors in float32 as its weights."""
    try:
        with torch.device("meta"):
            network = build()
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"The configuration of {source} does not describe the network: {error!r}.") from error
    expected = network.state_dict()
    _check(expected, tensors, source, unused=unused)
    network.load_state_dict({key: tensors[key].float() for key in expected}, assign=True)
    return network.eval()


def _library(kind: type, config, tensors: Mapping[str, Tensor], source, unused=None, optional=(), **options):
    """A network of transformers, with the tensors in float32 as its weights."""
    with torch.device("meta"):
        expected = kind(config, **options).state_dict()
    _check(expected, tensors, source, unused=unused, optional=optional)
    state = {key: tensors[key].float() for key in expected if key in tensors}
    options["attn_implementation"] = UNMASKED
    with _silence():
        return kind.from_pretrained(None, config=config, state_dict=state, **options).eval()


@contextmanager
def _silence() -> Iterator[None]:
    """Switch off the progress bars of transformers."""
    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()
