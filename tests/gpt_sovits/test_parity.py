"""The networks against outputs of the authors' program, wherever ORACLES has them."""

import re
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import torch
from transformers import HubertConfig

from notebooks.gpt_sovits.network import checkpoint
from notebooks.gpt_sovits.network.pytorch_cloner import TorchDecoder
from notebooks.gpt_sovits.network.sovits import Spectrogram, SynthesizerTrn
from notebooks.gpt_sovits.network.t2s import Text2SemanticDecoder, prefix_mask
from notebooks.gpt_sovits.pipeline import token_decoder
from notebooks.gpt_sovits.pipeline.constants import NOISE_SCALE, VERSIONS
from tests.oracles import fill
from tests.references import files, read, section, sections, stored, tensor

FILES = files("gpt_sovits")
KNOWN = (
    r"t2s/(phones|prompts|forced_tokens|xy_pos|mask_true_is_blocked|prompt_hidden|[kv]_cache\d+_(prompt|last)"
    r"|logits_prompt_then_forced|greedy_idx|greedy_tokens_rep[\d.]+_stop\d+)|sample/probs_k\d+_p[\d.]+_t[\d.]+_r[\d.]+"
    r"|vits/(codes|text)|vits_v\w+/(ge|ge_before_sv|ge512|enc_p_x|m_p|logs_p|z|ssl_proj|extract_latent_codes|decode_out"
    r"|decode_out_tworefs_speed[\d.]+(_len)?)|spec/spec_every\d+th_bin|symbols/v\d"
    r"|hubert/(last_hidden_state|conv_features_ch\d+_\d+)|bert/(ids|hidden_minus3|word2ph|phone_level)"
)
Arrays = dict[str, np.ndarray]


def weights(path: Path, name: str, unused: str) -> dict[str, torch.Tensor]:
    """A checkpoint's tensors, but for those whose key matches `unused`."""
    entries = sections(path)[name]["keys"]
    return {key: tensor(key, entry) for key, entry in entries.items() if not re.match(unused, key)}


def filled(network: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> torch.nn.Module:
    """The network with exactly these tensors."""
    own = network.state_dict()
    assert {key: x.shape for key, x in own.items()} == {key: x.shape for key, x in tensors.items()}
    network.load_state_dict(tensors, assign=True)
    return network.eval()


def assert_equal(ours: torch.Tensor, reference: np.ndarray, tolerance: float) -> None:
    assert ours.shape == reference.shape
    difference = float((ours - torch.from_numpy(reference)).abs().max())
    assert difference <= tolerance, difference


def drawn(name: str, *shape: int) -> torch.Tensor:
    return torch.from_numpy(fill.normal_input(name, shape))


def test_there_is_reference_data_and_all_of_it_is_known():
    assert FILES
    for path in FILES:
        for key in np.load(path):
            assert re.fullmatch(KNOWN, key), f"{key} of {path} is not known"
        for name in sections(path):
            assert re.fullmatch(r"t2s_v[12]|vits_v(1|2|2Pro)|hubert|bert", name), f"weights {name} of {path}"


# --- the decoder of tokens --------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def decoder(path: Path) -> Text2SemanticDecoder:
    """The first that knows all of the stored phones."""
    most = section(path, "t2s")["phones"].max()
    configs = {name: config for name, config in read(path, "meta.json")["config"].items() if name.startswith("t2s")}
    name = min((name for name in configs if configs[name]["phoneme_vocab_size"] > most), key=len)
    with torch.device("meta"):
        network = Text2SemanticDecoder({"model": configs[name]})
    return filled(network, weights(path, name, "nothing"))


@cache
@torch.inference_mode()
def read_aloud(path: Path) -> tuple[Arrays, dict[str, list]]:
    """What the decoder makes of the stored phones, prompts and tokens, and the cache after the prompts and at last."""
    stored, network = section(path, "t2s"), decoder(path)
    phones, prompts = (torch.from_numpy(stored[name]) for name in ("phones", "prompts"))
    bert = drawn("t2s.bert", len(phones), network.bert_proj.in_features, phones.shape[1])
    places = torch.arange(prompts.shape[1])[None]
    x = torch.cat([network.embed_text(phones, bert), network.embed_audio(prompts, places)], 1)
    mask = prefix_mask(x.shape[1], x.shape[1], phones.shape[1])
    logits, cache = network.prefill(phones, bert, prompts)
    made = {"xy_pos": x, "prompt_hidden": network.run(x, mask, network.empty_cache(len(x)))[0]}
    caches, all_logits = {"prompt": cache}, [logits]
    for i, token in enumerate(stored["forced_tokens"]):
        logits, cache = network.step(torch.tensor([[token]]), prompts.shape[1] + i, cache)
        all_logits.append(logits)
    made |= {"mask_true_is_blocked": ~mask[0, 0], "logits_prompt_then_forced": torch.cat(all_logits)}
    return made, caches | {"last": cache}


@stored(FILES, "t2s/(xy_pos|prompt_hidden|logits_prompt_then_forced)")
def test_decoder(path, key):
    name = key.partition("/")[2]
    assert_equal(read_aloud(path)[0][name], section(path, "t2s")[name], 2e-5)


@stored(FILES, "t2s/mask_true_is_blocked")
def test_what_rows_see(path, key):
    assert (read_aloud(path)[0]["mask_true_is_blocked"].numpy() == section(path, "t2s")["mask_true_is_blocked"]).all()


@stored(FILES, r"t2s/[kv]_cache\d+_(prompt|last)")
def test_cache(path, key):
    """The authors' is kept before the heads are split."""
    kind, layer, when = re.fullmatch(r"t2s/([kv])_cache(\d+)_(prompt|last)", key).groups()
    reference = section(path, "t2s")[key.partition("/")[2]]
    rows = read_aloud(path)[1][when][int(layer)]["kv".index(kind)].transpose(1, 2).flatten(2)
    assert_equal(rows[:, -reference.shape[1] :], reference, 2e-5)


@stored(FILES, r"t2s/greedy_tokens_rep[\d.]+_stop\d+")
def test_the_likeliest_tokens(path, key):
    """The authors' are those of the prompts and one more than where they stop."""
    stored = section(path, "t2s")
    penalty, stop = re.search(r"rep([\d.]+)_stop(\d+)", key).groups()
    phones, prompts = stored["phones"][0], stored["prompts"][0]
    bert = fill.normal_input("t2s.bert", (1, decoder(path).bert_proj.in_features, len(phones)))[0]
    options = {"top_k": 1, "penalty": float(penalty), "limit": int(stop) + 1}
    inputs = phones, bert, prompts
    said = token_decoder.generate(TorchDecoder(decoder(path)), *inputs, np.random.default_rng(0), **options)
    assert said.tolist() == stored[key.partition("/")[2]][0, len(prompts) :].tolist()
    assert len(said) == stored["greedy_idx"] + 1


@stored(FILES, "sample/probs_.*")
def test_odds(path, key):
    """The authors drew the logits, and penalised tokens that are not among the likely ones."""
    reference = section(path, "sample")[key.partition("/")[2]][0]
    top_k, top_p, temperature = re.fullmatch(r"sample/probs_k(\d+)_p([\d.]+)_t([\d.]+)_r[\d.]+", key).groups()
    logits = 3 * fill.normal_input("t2s.sample_logits", (1, len(reference)))[0].astype(np.float64)
    made = token_decoder.probabilities(logits, int(top_k), float(top_p), float(temperature))
    assert (made > 0).tolist() == (reference > 0).tolist() and np.abs(made - reference).max() < 1e-6


# --- the synthesizer --------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def synthesizer(path: Path, name: str) -> SynthesizerTrn:
    tensors = checkpoint.folded(weights(path, name, rf"enc_q\.|{checkpoint.CODEBOOK_STATE.pattern}"))
    config = read(path, "meta.json")["config"]["s2"]
    style = {"version": name.removeprefix("vits_"), "gin_channels": tensors["dec.cond.weight"].shape[1]}
    with torch.device("meta"):
        network = SynthesizerTrn({"data": config["data"], "model": config["model"] | style})
    assert checkpoint.version(tensors, {}) == style["version"]
    return filled(network, tensors)


def recording(path: Path) -> torch.Tensor:
    """The spectrogram [1, bins, frames] that the authors' program got. The number of frames is stored nowhere."""
    bins = read(path, "meta.json")["config"]["s2"]["data"]["filter_length"] // 2 + 1
    return drawn("vits.refer", 1, bins, 37).abs()


@lru_cache(maxsize=1)
@torch.inference_mode()
def spoken(path: Path, name: str) -> dict[str, torch.Tensor]:
    """All that the synthesizer makes of the stored tokens and phones, by the names of the reference data."""
    network, inputs = synthesizer(path, name), section(path, "vits")
    codes, phones = (torch.from_numpy(inputs[what]).flatten(0, -2) for what in ("codes", "text"))
    spectrogram = recording(path)
    made = {"ge": network.style(spectrogram)}
    if network.version == "v2Pro":
        made["ge_before_sv"] = made["ge"]
        made["ge"] = network.style(spectrogram, drawn("vits.sv", 1, network.sv_emb.in_features))
        made["ge512"] = network.ge_to512(made["ge"].transpose(1, 2)).transpose(1, 2)
    noise = NOISE_SCALE * drawn("vits.noise", 1, network.dec.conv_pre.in_channels, 2 * codes.shape[1])
    made["enc_p_x"], made["m_p"], made["logs_p"] = network.prior(codes, phones, made["ge"], noise.shape[-1])
    made["z"] = network.flow(made["m_p"] + noise * made["logs_p"].exp(), made["ge"], reverse=True)
    made["decode_out"] = network(codes, phones, made["ge"], noise)
    ssl = drawn("vits.ssl", 1, network.ssl_proj.in_channels, 21)
    return made | {"ssl_proj": network.ssl_proj(ssl), "extract_latent_codes": network.encode(ssl)[:, None]}


@stored(FILES, r"vits_v\w+/(ge|ge_before_sv|ge512|enc_p_x|m_p|logs_p|ssl_proj|decode_out)")
def test_synthesizer(path, key):
    name, _, what = key.partition("/")
    assert_equal(spoken(path, name)[what], section(path, name)[what], 2e-5)


@stored(FILES, r"vits_v\w+/z")
def test_flow(path, key):
    name = key.partition("/")[0]
    assert_equal(spoken(path, name)["z"], section(path, name)["z"], 1e-4)


@stored(FILES, r"vits_v\w+/extract_latent_codes")
def test_tokens_of_a_reference(path, key):
    name = key.partition("/")[0]
    made = spoken(path, name)["extract_latent_codes"]
    assert made.tolist() == section(path, name)["extract_latent_codes"].tolist()


@stored(FILES, r"vits_v\w+/decode_out_tworefs_speed[\d.]+")
@torch.inference_mode()
def test_two_recordings_at_another_speed(path, key):
    """The second recording is the first at half its loudness; of the sound the beginning and the length are stored."""
    name, _, what = key.partition("/")
    network, inputs, results = synthesizer(path, name), section(path, "vits"), section(path, name)
    codes, phones = (torch.from_numpy(inputs[part]).flatten(0, -2) for part in ("codes", "text"))
    spectrogram = recording(path)
    ge = (network.style(spectrogram) + network.style(0.5 * spectrogram)) / 2
    frames = int(2 * codes.shape[1] / float(what.rpartition("speed")[2])) + 1
    noise = NOISE_SCALE * drawn("vits.noise", 1, network.dec.conv_pre.in_channels, frames)
    sound = network(codes, phones, ge, noise)
    assert list(sound.shape) == results[f"{what}_len"].tolist()
    assert_equal(sound[..., : results[what].shape[-1]], results[what], 2e-5)


@stored(FILES, r"spec/spec_every\d+th_bin")
@torch.inference_mode()
def test_spectrogram(path, key):
    """Of a tone that rises from 200 to 2000 Hz in a second."""
    reference, config = section(path, "spec")[key.partition("/")[2]], read(path, "meta.json")["config"]["s2"]
    every, data = int(re.search(r"\d+", key)[0]), config["data"]
    time = np.arange(reference.shape[2] * data["hop_length"]) / data["sampling_rate"]
    wav = 0.4 * np.sin(2 * np.pi * (200 + 900 * time) * time)
    made = Spectrogram(data)(torch.from_numpy(wav.astype(np.float32))[None])
    assert_equal(made[:, ::every], reference, 1e-4)


@stored(FILES, r"symbols/v\d")
def test_every_symbol_has_an_embedding(path, key):
    name = key.partition("/")[2]
    assert VERSIONS[name] == len(section(path, "symbols")[name])


# --- HuBERT and BERT --------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
@torch.inference_mode()
def heard(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """HuBERT's convolutions and last states."""
    config = HubertConfig.from_dict(read(path, "meta.json")["config"]["hubert"]).to_dict()
    network = checkpoint.hubert(config, weights(path, "hubert", "nothing"), path)
    wav = 0.1 * drawn("hubert.wav", 1, 8000)
    return network.feature_extractor(wav), network(wav).last_hidden_state


@stored(FILES, "hubert/last_hidden_state")
def test_hubert(path, key):
    assert_equal(heard(path)[1], section(path, "hubert")["last_hidden_state"], 2e-5)


@stored(FILES, r"hubert/conv_features_ch\d+_\d+")
def test_convolutions_of_hubert(path, key):
    first, last = map(int, re.findall(r"\d+", key))
    assert_equal(heard(path)[0][0, first:last][None], section(path, "hubert")[key.partition("/")[2]], 2e-5)


@lru_cache(maxsize=1)
@torch.inference_mode()
def features(path: Path) -> torch.Tensor:
    """BERT's, of the stored tokens."""
    shapes = {key: e["shape"] for key, e in sections(path)["bert"]["keys"].items()}
    words, width = shapes["embeddings.word_embeddings.weight"]
    depth = 1 + max(int(key.split(".")[2]) for key in shapes if key.startswith("encoder.layer."))
    config = {
        **{"vocab_size": words, "hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": width // 64},
        "intermediate_size": shapes["encoder.layer.0.intermediate.dense.weight"][0],
        "max_position_embeddings": shapes["embeddings.position_embeddings.weight"][0],
    }
    last = rf"encoder\.layer\.({depth - 2}|{depth - 1})\."
    network = checkpoint.bert(config, weights(path, "bert", last), path)
    return network(torch.from_numpy(section(path, "bert")["ids"])).last_hidden_state


@stored(FILES, "bert/hidden_minus3")
def test_bert(path, key):
    assert_equal(features(path), section(path, "bert")["hidden_minus3"], 2e-5)


@stored(FILES, "bert/phone_level")
def test_features_of_phones(path, key):
    """Every character's as often as it has phones; the tokens at both ends are none."""
    stored = section(path, "bert")
    made = features(path)[0, 1:-1].repeat_interleave(torch.from_numpy(stored["word2ph"]), 0).T
    assert_equal(made, stored["phone_level"], 2e-5)
