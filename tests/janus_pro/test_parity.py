"""The network, and drawing with OpenVINO, against outputs of the authors' program wherever ORACLES has them."""

import math
import re
from functools import cache, lru_cache
from itertools import combinations
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
import torch
from PIL import Image
from transformers import JanusConfig, JanusForConditionalGeneration

from notebooks.janus_pro import convert, network, pipeline
from tests.oracles import fill
from tests.references import files, sections, stored, tensor
from utils.models.llm import FP32_PROPERTIES

FILES = files("janus")
KNOWN = (
    r"vision/(features|aligned)_every\d+(st|nd|rd|th)_token"
    r"|vq/(decoded_stride\d+|decoded_mean_std|uint8_stride\d+|codebook_entry|encode_ids_\d+px|encode_prequant)"
    r"|gen/embed_ids(_\d+)+|cfg/(tokens|hidden_last_step0|greedy_tokens|logits_every\d+(st|nd|rd|th))"
    r"|text/(ids|logits_last)|pre/(rgb_\d+x\d+|pixels_stride\d+)"
)
PAINTING = ("model.generation_embeddings", "model.generation_aligner", "model.generation_head")


def entries(path: Path) -> dict[str, dict]:
    """The authors' tensors of an oracle: shape, dtype and recipe by key."""
    (section,) = sections(path).values()
    return section["keys"]


def configuration(shapes: dict[str, list[int]]) -> JanusConfig:
    """The configuration of a checkpoint with tensors of these shapes; heads have 64 values in the tower, else 128."""

    def count(pattern: str) -> int:
        return 1 + max(int(found[1]) for key in shapes if (found := re.match(pattern, key)))

    tower, vq, text = "vision_model.vision_tower", "gen_vision_model", "language_model.model"
    _, places, seen = shapes[f"{tower}.pos_embed"]
    patch = shapes[f"{tower}.patch_embed.proj.weight"][-1]
    words, width = shapes[f"{text}.embed_tokens.weight"]
    base = shapes[f"{vq}.encoder.conv_in.weight"][0]
    levels = range(count(rf"{vq}\.encoder\.conv_blocks\.(\d+)\."))
    codes, code = shapes[f"{vq}.quantize.embedding.weight"]
    return JanusConfig(
        text_config={
            "model_type": "llama",
            "vocab_size": words,
            "hidden_size": width,
            "intermediate_size": shapes[f"{text}.layers.0.mlp.up_proj.weight"][0],
            "num_hidden_layers": count(rf"{re.escape(text)}\.layers\.(\d+)\."),
            "num_attention_heads": width // 128,
            "num_key_value_heads": shapes[f"{text}.layers.0.self_attn.k_proj.weight"][0] // 128,
            "rms_norm_eps": 1e-6,
        },
        vision_config={
            "hidden_size": seen,
            "num_hidden_layers": count(rf"{re.escape(tower)}\.blocks\.(\d+)\."),
            "num_attention_heads": seen // 64,
            "mlp_ratio": shapes[f"{tower}.blocks.0.mlp.fc1.weight"][0] / seen,
            "patch_size": patch,
            "image_size": math.isqrt(places) * patch,
            "projection_dim": width,
        },
        vq_config={
            "num_embeddings": codes,
            "embed_dim": code,
            "latent_channels": shapes[f"{vq}.post_quant_conv.weight"][0],
            "base_channels": base,
            "channel_multiplier": [
                shapes[f"{vq}.encoder.conv_blocks.{i}.res.0.conv1.weight"][0] // base for i in levels
            ],
            "num_res_blocks": count(rf"{vq}\.encoder\.conv_blocks\.0\.res\.(\d+)\."),
            "projection_dim": width,
            "image_token_embed_dim": width,
        },
    )


@lru_cache(maxsize=1)  # they are large
def build(path: Path, *parts: str) -> JanusForConditionalGeneration:
    """The network with the weights that the oracle was made with, in these parts."""
    found = {}
    for key, entry in entries(path).items():
        found |= network.canonical_tensors(key, tuple(entry["shape"]), lambda key=key, entry=entry: tensor(key, entry))
    with torch.device("meta"):
        model = JanusForConditionalGeneration(configuration({key: e["shape"] for key, e in entries(path).items()}))
    return network.load_weights(model, found, parts, None)


def drawn_integers(name: str, shape: tuple[int, ...], most: int) -> np.ndarray:
    return fill._generator_of_input(name).randint(0, most, shape)


def assert_equal(ours, reference: np.ndarray, tolerance: float) -> None:
    ours = np.asarray(ours, np.float64)
    assert ours.shape == reference.shape
    assert np.abs(ours - reference.astype(np.float64)).max() <= tolerance


def test_there_is_reference_data_and_all_of_it_is_known():
    assert FILES
    for path in FILES:
        assert [key for key in np.load(path) if not re.fullmatch(KNOWN, key)] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_authors_tensors_are_those_of_the_network(path):
    """Each of the network's tensors once, of its shape; those that the authors do not use are known."""
    found = {}
    for key, entry in entries(path).items():
        names = network.canonical_tensors(key, tuple(entry["shape"]), torch.Tensor)
        assert bool(entry.get("unused")) == all(network.UNUSED.fullmatch(name) is not None for name in names)
        assert not found.keys() & names.keys()
        found |= {name: tensor.shape for name, tensor in names.items() if not entry.get("unused")}
    with torch.device("meta"):
        model = JanusForConditionalGeneration(configuration({key: e["shape"] for key, e in entries(path).items()}))
    assert found == {key: tuple(x.shape) for key, x in model.state_dict().items()}


@cache
@torch.inference_mode()
def seen(path: Path) -> dict[str, torch.Tensor]:
    """What the tower and the aligner make of the oracle's picture."""
    model = build(path, "model.vision_model", "model.aligner")
    size = model.config.vision_config.image_size
    pixels = torch.from_numpy(fill.uniform_input("janus.pixels", (1, 3, size, size), -1, 1))
    found = model.model.get_image_features(pixels)
    return {"features": found.last_hidden_state, "aligned": found.pooler_output}


@stored(FILES, r"vision/(features|aligned)_every\d+.._token")
def test_pictures_are_seen(path, key):
    step = int(re.search(r"\d+", key)[0])
    assert_equal(seen(path)[re.search("features|aligned", key)[0]][:, ::step], np.load(path)[key], 2e-5)


@stored(FILES, r"vq/decoded_stride\d+")
@torch.inference_mode()
def test_pictures_are_made_of_tokens(path, key):
    """Also as bytes; and the picture as a whole by its mean and deviation."""
    reference, step = np.load(path), int(key.partition("stride")[2])
    vq = build(path, "model.vqmodel").model.vqmodel
    side, codes = vq.quantize.quant_state_dims[0], vq.quantize.num_embeddings
    ids = torch.from_numpy(drawn_integers("janus.vq_ids", (1, side * side), codes))
    rows = reference["vq/codebook_entry"].shape[2]
    assert_equal(vq.quantize.get_codebook_entry(ids)[:, :, :rows], reference["vq/codebook_entry"], 1e-6)
    pixels = vq.decode(ids)
    assert_equal(pixels[..., ::step, ::step], reference[key], 3e-5)
    assert_equal([pixels.mean(), pixels.std(correction=0)], reference["vq/decoded_mean_std"], 1e-5)
    painted = pipeline.to_rgb(pixels[0].numpy())[::step, ::step]
    expected = reference[f"vq/uint8_stride{step}"][0].astype(int)
    assert np.abs(painted.astype(int) - expected).max() <= 1 and (painted != expected).mean() < 1e-3


@stored(FILES, r"vq/encode_ids_\d+px")
@torch.inference_mode()
def test_pictures_are_made_tokens(path, key):
    reference, size = np.load(path), int(re.search(r"\d+", key)[0])
    model = build(path, "model.vqmodel")
    pixels = torch.from_numpy(fill.uniform_input("janus.vq_image", (1, 3, size, size), -1, 1))
    vq = model.model.vqmodel
    assert_equal(vq.quant_conv(vq.encoder(pixels)), reference["vq/encode_prequant"], 3e-5)
    assert network.encode_pictures(model, pixels)[0].tolist() == reference[key].tolist()


@stored(FILES, r"gen/embed_ids.*")
@torch.inference_mode()
def test_tokens_of_pictures_are_embedded(path, key):
    ids = [int(number) for number in key.split("_")[2:]]
    model = build(path, "model.language_model", *PAINTING)
    found = model.prepare_embeddings_for_image_generation(torch.tensor(ids))
    assert_equal(found, np.load(path)[key], 1e-5)


@stored(FILES, "text/logits_last")
@torch.inference_mode()
def test_words_follow_words_and_a_picture(path, key):
    """The picture's first embeddings stand for some of the ids. For which the oracle does not tell, so it is found."""
    reference, picture = np.load(path), seen(path)["aligned"]
    model = build(path, "model.language_model", "lm_head")
    embeddings = model.get_input_embeddings()(torch.from_numpy(reference["text/ids"]))
    count, fits = embeddings.shape[1], []
    for first, end in sorted(combinations(range(count), 2), key=lambda span: span != (3, 7)):
        read = embeddings.clone()
        read[:, first:end] = picture[:, : end - first]
        logits = model(inputs_embeds=read).logits[:, -1].numpy()
        if logits.shape == reference[key].shape and np.abs(logits - reference[key]).max() <= 3e-5:
            fits.append((first, end))
            break
    assert len(fits) == 1


@stored(FILES, r"cfg/logits_every\d+..")
@torch.inference_mode()
def test_guided_logits(path, key):
    """The authors' loop, without sampling: every step reads the token that they chose."""
    reference, step = np.load(path), int(re.search(r"\d+", key)[0])
    model = build(path, "model.language_model", *PAINTING)
    embeddings, cache = model.get_input_embeddings()(torch.from_numpy(reference["cfg/tokens"])), None
    for chosen, expected in zip(reference["cfg/greedy_tokens"].T, reference[key], strict=True):
        read = model.model.language_model(inputs_embeds=embeddings, past_key_values=cache, use_cache=True)
        hidden, cache = read.last_hidden_state[:, -1], read.past_key_values
        logits = model.model.generation_head(hidden)
        guided = logits[1::2] + 5 * (logits[::2] - logits[1::2])
        assert_equal(guided[:, ::step], expected, 1e-4)
        assert guided.argmax(-1).tolist() == chosen.tolist()
        embeddings = model.prepare_embeddings_for_image_generation(
            torch.from_numpy(chosen).repeat_interleave(2)[:, None]
        )


@cache
def opened(path: Path) -> pipeline.Janus:
    """The pipeline on the oracle's weights: only what drawing needs, and straight from memory."""
    model = build(path, "model.language_model", *PAINTING)
    janus = pipeline.Janus.__new__(pipeline.Janus)
    core = ov.Core()
    models = {
        "language": convert.convert_language_model(model),
        "text_embeddings": convert.convert_text_embeddings(model),
        "drawing_step": pipeline.drawing_step(
            convert.convert_image_head(model), convert.convert_generation_embeddings(model)
        ),
    }
    janus._requests = {
        part: core.compile_model(x, "CPU", FP32_PROPERTIES).create_infer_request() for part, x in models.items()
    }
    janus.codes, janus.rows = model.config.vq_config.num_embeddings, model.config.vq_config.num_patches
    return janus


@stored(FILES, "cfg/greedy_tokens")
def test_openvino_draws_the_authors_tokens(path, key):
    reference = np.load(path)
    janus = opened(path)
    for prompted, unprompted, chosen in zip(
        reference["cfg/tokens"][::2], reference["cfg/tokens"][1::2], reference[key], strict=True
    ):
        prompts = prompted.tolist(), unprompted.tolist()
        drawn = janus.sample_image_tokens(*prompts, guidance=5.0, temperature=0.0, count=len(chosen))
        assert drawn.tolist() == [chosen.tolist()]
        janus.reset_cache()
        hidden = janus.read(janus.embed(*prompts))[:, -1]
        place = 2 * reference[key].tolist().index(chosen.tolist())
        assert_equal(hidden, reference["cfg/hidden_last_step0"][place : place + 2], 3e-5)


@stored(FILES, r"pre/pixels_stride\d+")
def test_pictures_are_made_small_and_square(path, key):
    """The same picture, read and prepared by the pipeline."""
    reference, step = np.load(path), int(key.partition("stride")[2])
    (given,) = (reference[name] for name in reference if name.startswith("pre/rgb_"))
    size = configuration({key: e["shape"] for key, e in entries(path).items()}).vision_config.image_size
    pixels = pipeline.preprocess(pipeline.open_picture(Image.fromarray(given))[0], size)
    assert_equal(pixels[0, :, ::step, ::step], reference[key], 1e-6)
