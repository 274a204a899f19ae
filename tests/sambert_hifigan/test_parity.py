"""The networks against outputs of the authors' program, wherever ORACLES has them."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from notebooks.sambert_hifigan.network import acoustic, checkpoint, layers, vocoder
from tests.oracles import fill
from tests.references import files, read, section, sections, tensor

FILES = files("kantts")
KEYS = {path: set(np.load(path)) for path in FILES}
ACOUSTIC = {
    *("inputs_ling", "inputs_emotion", "inputs_speaker", "se", "text_encoder_out", "pitch_predictions"),
    *("energy_predictions", "log_duration_predictions", "LR_length_rounded", "LR_text_outputs", "LR_emo_outputs"),
    *("LR_spk_outputs", "x_band_width", "h_band_width", "dec_outputs", "postnet_outputs", "decoder_memory"),
    *("decoder_target", "decoder_out_band", "decoder_out_band_teacher", "postnet_in", "postnet_residual"),
    *("var_in", "pitch_pred", "energy_pred", "dur_pred_log", "denorm_mean_std_mean_std", "denorm_global"),
}
KNOWN = {  # kind of section: what it may hold, numbers left out
    "sambert": ACOUSTIC,
    "hifigan": {"in", "out", "source", "conv_pre", "phase", "noise"},
    "fixed": {"position_enc_rows_cols", "inv_timescales"},
    "frontend": None,  # no network's
}
Arrays = dict[str, np.ndarray]


def having(pattern: str):
    """Runs a test once for every key of the reference data that matches: file, section, and what the key is."""
    found = []
    for path in FILES:
        for key in sorted(KEYS[path]):
            name, _, what = key.partition("/")
            if re.fullmatch(pattern, what) and name != "frontend":
                found.append(pytest.param(path, name, what, id=f"{path.parent.name}-{path.stem}-{name}-{what}"))
    return pytest.mark.parametrize(("oracle", "name", "what"), found)


@cache
def build(path: Path, name: str) -> torch.nn.Module:
    """The section's network, read from a state dict as the authors' file has it; formulas are left out there."""
    entries, params = sections(path)[name]["keys"], read(path, "meta.json")["configs"][name]
    tensors = {key: tensor(key, entry) for key, entry in entries.items() if not entry.get("fixed")}
    shapes = {key: torch.Size(e["shape"]) for key, e in entries.items()}
    if name.startswith("sambert"):
        network = acoustic.KanTtsSAMBERT({"Model": {"KanTtsSAMBERT": {"params": params}}})
        assert {key: x.shape for key, x in network.state_dict().items()} == shapes
        assert {key for key, e in entries.items() if e.get("fixed")} == set(acoustic.FORMULAS)
        network.load_state_dict(tensors, strict=False)
    else:
        network = vocoder.Generator({"Model": {"Generator": {"params": params}}})
        checkpoint.check(vocoder.stored_shapes(network), tensors, path)
        network.load_state_dict(vocoder.folded(tensors))
    return network.eval()


def tensors(stored: Arrays, *names: str) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(stored[name]) for name in names)


def assert_equal(ours: torch.Tensor, reference: np.ndarray, tolerance: float = 5e-6) -> None:
    assert ours.shape == reference.shape
    difference = float((ours - torch.from_numpy(reference)).abs().max())
    assert difference <= tolerance, difference


def test_there_is_reference_data_and_all_of_it_is_known():
    assert FILES
    for path in FILES:
        for key in KEYS[path]:
            name, _, what = key.partition("/")
            kind = name.partition("_")[0]
            plain = re.sub(r"(?<=[a-z])\d+|_\d+", "", what)
            assert kind in KNOWN and (KNOWN[kind] is None or plain in KNOWN[kind]), f"{key} of {path} is not known"
        sections = read(path, "keys.json")["sections"].keys()
        assert sections <= {key.partition("/")[0] for key in KEYS[path]}, "weights without outputs"


@cache
@torch.inference_mode()
def spoken(path: Path, name: str) -> acoustic.AcousticOutput:
    return build(path, name)(*tensors(section(path, name), "inputs_ling", "inputs_emotion", "inputs_speaker"))


@having("(pitch|energy|log_duration)_predictions")
def test_predictions_for_every_phoneme(oracle, name, what):
    field = {"pitch_predictions": "pitch", "energy_predictions": "energy"}.get(what, "log_durations")
    assert_equal(getattr(spoken(oracle, name), field), section(oracle, name)[what])


@having("(postnet|dec)_outputs")
def test_frames(oracle, name, what):
    """The authors' end with padding to whole groups, which is 0."""
    result, reference = spoken(oracle, name), section(oracle, name)[what]
    ours = result.mel if what == "postnet_outputs" else result.decoded
    assert_equal(ours, reference[:, : ours.shape[1]])
    assert not reference[:, ours.shape[1] :].any() and reference.shape[1] - ours.shape[1] < build(oracle, name).r


@having("LR_length_rounded|[xh]_band_width")
def test_lengths_and_bands(oracle, name, what):
    result = spoken(oracle, name)
    ours = result.frames.sum(1) if what == "LR_length_rounded" else result.band
    assert (np.asarray(ours) == section(oracle, name)[what]).all()


@having("text_encoder_out")
@torch.inference_mode()
def test_encoder(oracle, name, what):
    stored = section(oracle, name)
    made = build(oracle, name).encode(*tensors(stored, "inputs_ling", "inputs_emotion", "inputs_speaker"))
    assert_equal(made[0], stored[what])


@having("LR_(text|spk|emo)_outputs")
@torch.inference_mode()
def test_memory(oracle, name, what):
    """The decoder's memory: the text of all frames of a group, speaker and emotion of its first."""
    network, stored, result = build(oracle, name), section(oracle, name), spoken(oracle, name)
    text, speaker, emotion = network.encode(*tensors(stored, "inputs_ling", "inputs_emotion", "inputs_speaker"))
    widths = [text.shape[-1] * network.r, speaker.shape[-1], emotion.shape[-1]]
    text = network.variance_adaptor(text, speaker, emotion)[0]
    memory, _ = network.build_memory(text, speaker, emotion, *acoustic.stretch(result.frames, network.r))
    text, speaker, emotion = memory.split(widths, -1)
    if what == "LR_text_outputs":
        assert_equal(text.unflatten(-1, (network.r, -1)).flatten(1, 2), stored[what])
    else:
        assert_equal(speaker if what == "LR_spk_outputs" else emotion, stored[what][:, :: network.r])


@having(r"decoder_out_band\d+(_teacher)?")
@torch.inference_mode()
def test_decoder(oracle, name, what):
    stored, decoder = section(oracle, name), build(oracle, name).decoder
    (memory,), band = tensors(stored, "decoder_memory"), int(re.search(r"\d+", what)[0])
    if what.endswith("_teacher"):
        made = decoder.teacher_forced(memory, *tensors(stored, "decoder_target"), band)
    else:
        made = decoder.infer(memory, band)
    assert_equal(made.reshape(stored[what].shape), stored[what])


@having("postnet_residual")
@torch.inference_mode()
def test_postnet(oracle, name, what):
    stored = section(oracle, name)
    assert_equal(build(oracle, name).mel_postnet(*tensors(stored, "postnet_in")), stored[what])


@having("pitch_pred|energy_pred|dur_pred_log")
@torch.inference_mode()
def test_predictors(oracle, name, what):
    stored, adaptor = section(oracle, name), build(oracle, name).variance_adaptor
    predict = {"pitch_pred": adaptor.pitch_predictor, "energy_pred": adaptor.energy_predictor}
    assert_equal(predict.get(what, adaptor.duration_predictor.infer)(*tensors(stored, "var_in")), stored[what])


@having("denorm_.*")
def test_pitch_in_hertz(oracle, name, what, monkeypatch):
    network, stored = build(oracle, name), section(oracle, name)
    first, second = (float(number) for number in re.findall(r"\d+(?:\.\d+)?", what))
    f0 = (second, first - second) if "global" in what else (first, second)
    monkeypatch.setattr(network, "f0", f0)
    (mel,) = tensors(stored, "postnet_outputs")
    assert_equal(network.in_hertz(mel)[0, : len(stored[what])], stored[what], 1e-4)


@having("position_enc_rows.*|inv_timescales")
def test_formulas(oracle, name, what):
    stored = section(oracle, name)[what]
    if what == "inv_timescales":
        return assert_equal(layers.DurationPositions(len(stored)).inv_timescales.detach(), stored, 1e-6)
    top, bottom, left, right = map(int, re.fullmatch(r"position_enc_rows(\d+)_(\d+)_cols(\d+)_(\d+)", what).groups())
    for path in FILES:
        for params in read(path, "meta.json")["configs"].values():
            if "embedding_dim" in params:
                table = layers.PositionEncoder.table(bottom, params["embedding_dim"])
                assert_equal(table[0, top:bottom, left:right], stored, 1e-6)


def source_inputs(network: vocoder.Generator, stored: Arrays) -> tuple[torch.Tensor, ...]:
    """phase and noise: stored, or too large for that and drawn; the authors' noise comes scaled."""
    if not network.nsf:
        return ()
    batch, samples = stored["out"].shape[0], stored["out"].shape[-1]
    if "phase" in stored:
        phase = stored["phase"]
    else:
        phase = 2 * np.pi * (fill.uniform_input("nsf.phase", (batch, network.sines, 1)) - 0.5)
        phase[:, 0] = 0
    drawn = fill.normal_input("nsf.noise", (batch, network.sines, samples))
    noise = stored["noise"] / vocoder.VOICED_NOISE if "noise" in stored else drawn
    return torch.from_numpy(phase.astype(np.float32)), torch.from_numpy(noise.astype(np.float32))


@having("out")
@torch.inference_mode()
def test_sound(oracle, name, what):
    network, stored = build(oracle, name), section(oracle, name)
    sound = network(*tensors(stored, "in"), *source_inputs(network, stored))
    assert_equal(sound, stored[what], 1e-4)


@having("source")
@torch.inference_mode()
def test_source(oracle, name, what):
    network, stored = build(oracle, name), section(oracle, name)
    (mel,) = tensors(stored, "in")
    source = network.source_module(mel[:, -2:-1], mel[:, -1:], *source_inputs(network, stored))
    assert_equal(source, stored[what], 2e-5)


@having("conv_pre")
@torch.inference_mode()
def test_first_convolution(oracle, name, what):
    network, stored = build(oracle, name), section(oracle, name)
    (mel,) = tensors(stored, "in")
    made = network.conv_pre(mel[:, : network.mels])
    assert_equal(made[:, : stored[what].shape[1]], stored[what], 1e-5)
