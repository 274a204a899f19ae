"""The converted networks compute what PyTorch does, keep their state where it belongs, and a voice is whole or none."""

import json
import shutil
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
import torch
import yaml

from notebooks.sambert_hifigan.convert import voice as convert
from notebooks.sambert_hifigan.network.acoustic import load_acoustic, stretch
from notebooks.sambert_hifigan.pipeline import FP32_PROPERTIES, Synthesizer, parts_of, source_inputs
from notebooks.sambert_hifigan.pipeline.frontend import standard_tables
from tests.sambert_hifigan.small import (
    KINDS,
    NAMES,
    NSF,
    RATE,
    TABLE_SIZES,
    VOCODER,
    acoustic,
    embedding,
    sentence,
    vocoder,
    voice,
    voice_networks,
)
from utils.models.portable import wrong_on_arm
from utils.speech.sentences.mandarin import HELD_OUT

VOCODERS = {"plain": {}, "causal": {"causal": True}, "nsf": NSF, "causal nsf": NSF | {"causal": True}}
every_kind = pytest.mark.parametrize("kind", KINDS)
every_vocoder = pytest.mark.parametrize("kind", VOCODERS)


def request(model: ov.Model | Path, **properties) -> ov.InferRequest:
    return ov.Core().compile_model(model, "CPU", FP32_PROPERTIES | properties).create_infer_request()


def assert_close(ours: np.ndarray, theirs: torch.Tensor, tolerance: float = 1e-5) -> None:
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs.numpy()).max() <= tolerance


def run(part: ov.InferRequest, **inputs: torch.Tensor):
    return part.infer({name: x.numpy() for name, x in inputs.items()})


@torch.inference_mode()
def parts(network, kind: str, phonemes: int) -> dict[str, torch.Tensor]:
    """What goes in and comes out of the sub-models for a sentence, by the names of their ports."""
    ling, emotion, speaker = sentence(kind, phonemes)
    text, speakers, emotions = network.encode(ling, emotion, speaker)
    adapted, condition, pitch, energy = network.variance_adaptor(text, speakers, emotions)
    result = network(ling, emotion, speaker)
    token, place = stretch(result.frames, network.r)
    memory, ahead = network.build_memory(adapted, speakers, emotions, token, place)
    found = {"ling": ling, "emotion": emotion, "speaker": speaker, "text": text, "speaker_embedding": speakers}
    found |= {"emotion_embedding": emotions, "adapted": adapted, "condition": condition, "pitch": pitch}
    found |= {"energy": energy, "token": token, "place": place, "memory": memory, "ahead": ahead}
    return found | {"decoded": result.decoded, "mel": network.finish(result.decoded)}


@every_kind
@pytest.mark.parametrize("part", ["encoder", "variance", "memory", "finish"])
def test_a_part_computes_what_pytorch_does(kind, part, checkpoints, irs):
    network, model = load_acoustic(checkpoints[kind] / "am"), ov.Core().read_model(irs[kind] / f"{part}.xml")
    compiled, inputs, outputs = (
        request(model),
        *([x.any_name for x in ports] for ports in (model.inputs, model.outputs)),
    )
    for phonemes in (1, 9):
        values = parts(network, kind, phonemes)
        found = run(compiled, **{name: values[name] for name in inputs})
        for name in outputs:
            assert_close(found[name], values[name], 1e-5 * max(1, float(values[name].abs().max())))


@torch.inference_mode()
@pytest.mark.parametrize("phonemes", [1, 9])
def test_a_duration_depends_on_those_before_it(phonemes, checkpoints, irs):
    network = load_acoustic(checkpoints["plain"] / "am")
    condition = parts(network, "plain", phonemes)["condition"]
    expected = network.variance_adaptor.duration_predictor.infer(condition)
    model = request(irs["plain"] / "duration.xml")
    for _ in range(2):  # nothing is kept from one sentence to the next
        assert_close(run(model, condition=condition)["log_durations"], expected)


@torch.inference_mode()
@pytest.mark.parametrize("band", [0, 1, 3, 50])
def test_the_decoder_keeps_the_band(band, checkpoints, irs):
    decoder = load_acoustic(checkpoints["plain"] / "am").decoder
    memory = torch.randn(1, 8, 3 * 8 + 6 + 4, generator=torch.Generator().manual_seed(1))
    ahead, expected = decoder.keys_and_values(memory), decoder.infer(memory, band)
    model = request(irs["plain"] / "decoder.xml")
    for _ in range(2):
        found = run(model, memory=memory, ahead=ahead, band=torch.tensor(band))["frames"]
        assert_close(found.reshape(1, 24, 10), expected)


def mel(network, frames: int, seed: int = 0) -> np.ndarray:
    """[M, F] of noise, with a source a pitch of about 200 Hz, and voice but in the first two frames."""
    rng = np.random.default_rng(seed)
    made = [rng.standard_normal((network.mels, frames), np.float32)]
    if network.nsf:
        made += [180 + 40 * rng.random((1, frames), np.float32), (np.arange(frames) > 1)[None].astype(np.float32)]
    return np.concatenate(made)


class Sounding:
    """A vocoder's models, together; properties are those of the second."""

    def __init__(self, network, **properties):
        self.mels, self.source = network.mels, request(convert.convert_source(network)) if network.nsf else None
        self.vocoder = request(convert.convert_vocoder(network), **properties)

    def __call__(self, mel, **given) -> np.ndarray:
        """`sound` for what `Generator` takes."""
        mel, *pitch = np.split(mel, [self.mels, self.mels + 1], 1) if self.source else [mel]
        if pitch:
            f0, voiced = pitch
            given = {"source": self.source.infer({"f0": f0, "voiced": voiced, **given})["source"]}
        return self.vocoder.infer({"mel": mel, **given})["sound"]


def described(network) -> dict:
    return {"sines": network.sines if network.nsf else 0, "hop": network.hop}


def sound_inputs(network, frames: int, seed: int = 0) -> dict[str, np.ndarray]:
    """What `Generator` takes: mel, and with a source phase and noise."""
    given = {"mel": mel(network, frames, seed)[None]}
    return given | (source_inputs(described(network), frames, np.random.default_rng(seed)) if network.nsf else {})


@torch.inference_mode()
@every_vocoder
def test_the_vocoder_computes_what_pytorch_does(kind):
    network = vocoder(**VOCODERS[kind])
    sounding = Sounding(network)
    for frames in (2, 40):
        inputs = sound_inputs(network, frames)
        expected = network(*map(torch.from_numpy, inputs.values()))
        assert_close(sounding(**inputs), expected, 5e-5)
    assert isinstance(network.repeat_upsamples[0][0], torch.nn.Upsample)  # the network is as it was


@every_vocoder
def test_the_vocoder_runs_in_bf16(kind):
    network = vocoder(**VOCODERS[kind])
    inputs = sound_inputs(network, 200)  # long enough for a rounded phase to be another one
    exact, rough = (Sounding(network, INFERENCE_PRECISION_HINT=x)(**inputs) for x in ("f32", "bf16"))
    assert np.abs(rough - exact).mean() < 0.1 * exact.std()


def test_a_source_begins_with_a_phase_of_its_own():
    phase, noise = source_inputs({"sines": 8, "hop": 6}, 500, np.random.default_rng(0)).values()
    assert phase.shape == (1, 8, 1) and phase[0, 0] == 0 and 0.5 < np.abs(phase[0, 1:]).max() <= np.pi
    assert noise.shape == (1, 8, 3000) and noise.dtype == phase.dtype == np.float32
    assert noise.std() == pytest.approx(1, abs=0.02) and abs(noise.mean()) < 0.02


def test_half_weights_take_half_the_space(checkpoints, irs, tmp_path):
    half = convert.to_ir(checkpoints["nsf"], tmp_path / "half")
    for part in set(parts_of({"sines": 4})) - {"source"}:  # which has next to no weights
        small, large = (folder / f"{part}.bin" for folder in (half, irs["nsf"]))
        assert small.stat().st_size < 0.56 * large.stat().st_size, part
    exact, rounded = sounds((irs["nsf"], half), mel(voice_networks("nsf")[1], 30))
    assert np.abs(rounded - exact).max() < 0.02  # the tiny checkpoint is FP16 itself; constants are rounded here


def sounds(folders, spectrogram) -> list[np.ndarray]:
    """Samples of a mel spectrogram by the voices in IR folders, computed exactly."""
    return [Synthesizer(x, **FP32_PROPERTIES).vocode(spectrogram, np.random.default_rng(0)) for x in folders]


@pytest.mark.parametrize("kind", ["plain", "nsf"])
def test_int8_holds_the_kernels_in_integers_and_stays_close(kind, irs, tmp_path):
    network = voice_networks(kind)[1]
    folder = convert.quantize(irs[kind], [mel(network, 30, seed) for seed in range(3)], tmp_path / "int8")
    operations = ov.Core().read_model(folder / "vocoder.xml").get_ops()
    integers = [x for x in operations if x.get_type_name() == "Constant" and x.get_output_element_type(0) == ov.Type.i8]
    convolutions = [x for x in operations if "Convolution" in x.get_type_name()]
    assert len(integers) == len(convolutions) > 20
    exact, rounded = sounds((irs[kind], folder), mel(network, 30, seed=9))
    assert 0 < np.abs(rounded - exact).mean() < 0.2 * exact.std()
    assert {file.name for file in folder.iterdir()} == {file.name for file in irs[kind].iterdir()}


def test_int8_needs_mels_to_calibrate_on(irs, tmp_path):
    with pytest.raises(ValueError, match="needs mel spectrograms to calibrate on"):
        convert.quantize(irs["plain"], [], tmp_path / "int8")
    assert not (tmp_path / "int8").exists()


@every_kind
def test_a_voice_is_described(kind, irs):
    config = json.loads((irs[kind] / "voice.json").read_text(encoding="utf-8"))
    tables = standard_tables(NAMES)
    sizes = {"embedding": 6 if kind == "se" else 0, "sines": 0 if kind == "plain" else 4}
    assert config == {"sample_rate": RATE, "hop": 24, "group": 3, "positions": 120, "tables": tables} | sizes
    if kind == "se":
        for seed, name in enumerate(NAMES):
            assert (np.load(irs[kind] / "speakers" / f"{name}.npy") == embedding(seed)).all()
    assert (irs[kind] / "speakers").is_dir() == (kind == "se")


def test_the_embedding_of_a_released_voice_has_its_name(checkpoints, tmp_path):
    folder = shutil.copytree(checkpoints["se"], tmp_path / "zhida")
    shutil.rmtree(folder / "am" / "speakers")
    np.save(folder / "am" / "se.npy", embedding(5)[None].astype(np.float64))
    ((name, found),) = convert.speaker_embeddings(folder, 6).items()
    assert name == "zhida" and (found == embedding(5)).all()
    with pytest.raises(ValueError, match="se.npy has 6 numbers. A speaker's embedding of this voice has 192"):
        convert.speaker_embeddings(folder, 192)


def test_tables_without_a_mask_are_those_of_early_checkpoints():
    made, spoken = voice_networks()
    early = acoustic(**{table: size - 1 for table, size in TABLE_SIZES.items()})
    early.config["linguistic_unit"] = {"speaker_list": NAMES}
    assert convert.voice_config(Path("early"), early, spoken)["tables"] == standard_tables(NAMES, mask=False)


def test_parts_that_do_not_fit_together_raise_an_error(tmp_path, checkpoints):
    made, spoken = voice_networks()
    with pytest.raises(ValueError, match="makes 12 channels, but its vocoder takes 10"):
        convert.voice_config(Path("it"), voice_networks("nsf")[0], spoken)
    made.config["linguistic_unit"]["speaker_list"] = "Anna"
    with pytest.raises(ValueError, match="different lengths: speaker 5 and 4"):
        convert.voice_config(Path("it"), made, spoken)
    folder = shutil.copytree(checkpoints["plain"], tmp_path / "plain")
    (folder / "audio_config.yaml").write_text(
        yaml.safe_dump({"audio_config": {"sampling_rate": 16000}}), encoding="utf-8"
    )
    with pytest.raises(ValueError, match=r"must tell one sample rate, not \[16000, 2400\]"):
        convert.to_ir(folder, tmp_path / "ir")
    (folder / "audio_config.yaml").write_text("audio_config: 3", encoding="utf-8")
    with pytest.raises(ValueError, match="audio_config.yaml cannot be read"):
        convert.to_ir(folder, tmp_path / "ir")
    assert not (tmp_path / "ir").exists()


def test_a_voice_of_several_is_named(tmp_path):
    assert convert.voice_folder(voice(tmp_path / "one")) == tmp_path / "one"
    for name in ("F7", "M7"):
        (tmp_path / "voices" / name / "am").mkdir(parents=True)
    listed = tmp_path / "voices" / "voices.json"
    listed.write_text(json.dumps({"voices": ["F7", "M7"]}), encoding="utf-8")
    with pytest.raises(ValueError, match="Let CHECKPOINT name one in .*voices: F7, M7."):
        convert.voice_folder(tmp_path)
    assert convert.voice_folder(tmp_path / "voices" / "M7") == tmp_path / "voices" / "M7"
    listed.write_text(json.dumps({"voices": ["F7"]}), encoding="utf-8")
    assert convert.voice_folder(tmp_path) == tmp_path / "voices" / "F7"
    listed.write_text("[]", encoding="utf-8")
    with pytest.raises(ValueError, match="voices.json cannot be read"):
        convert.voice_folder(tmp_path)
    listed.unlink()
    with pytest.raises(ValueError, match="has neither am nor voices.json"):
        convert.voice_folder(tmp_path)


@pytest.fixture
def made(checkpoints, tmp_path, monkeypatch) -> list[str]:
    """What was converted, in a folder of models of its own, of a random voice in the place of the tiny checkpoint."""
    done = []

    def to_ir(voice, folder, half):
        done.append(f"{voice.name} {half}")
        (folder / "vocoder.xml").write_text("FP16" if half else "FP32", encoding="utf-8")

    def quantize(ir, mels, folder):
        done.append(f"{(ir / 'vocoder.xml').read_text(encoding='utf-8')} {len(mels)}")
        (folder / "vocoder.xml").write_text("INT8", encoding="utf-8")

    monkeypatch.setenv("MODELS_DIR", str(tmp_path / "models"))
    monkeypatch.setattr(convert.weights, "resolve", lambda name: checkpoints["plain"])
    monkeypatch.setattr(convert, "to_ir", to_ir)
    monkeypatch.setattr(convert, "quantize", quantize)
    return done


def test_a_checkpoint_is_converted_once(made):
    folders = [convert.prepare(precision=precision) for precision in ("FP16", "FP32", "FP16")]
    assert made == ["plain True", "plain False"]
    assert [(folder / "vocoder.xml").read_text(encoding="utf-8") for folder in folders] == ["FP16", "FP32", "FP16"]


def test_int8_is_calibrated_by_the_voice_itself_and_anew_when_by_more(made, monkeypatch):
    monkeypatch.setattr(
        convert,
        "calibration",
        lambda ir: [(ir / "vocoder.xml").read_text(encoding="utf-8")] * convert.CALIBRATION_SENTENCES,
    )
    first, count = convert.prepare(precision="INT8"), convert.CALIBRATION_SENTENCES
    assert convert.prepare(precision="INT8") == first and count != 3
    monkeypatch.setattr(convert, "CALIBRATION_SENTENCES", 3)
    assert convert.prepare(precision="INT8") != first
    assert made == ["plain True", f"FP16 {count}", "FP16 3"]


def test_calibration_is_composed_sentences_by_all_speakers(irs, monkeypatch):
    said = []
    told = convert.Synthesizer.stream
    monkeypatch.setattr(convert.Synthesizer, "stream", lambda self, *x: said.append(x) or told(self, *x))
    monkeypatch.setattr(convert, "CALIBRATION_SENTENCES", 3)
    mels = convert.calibration(irs["plain"])
    assert [name for _, name in said] == [*NAMES, *NAMES, *NAMES][:3] and len({text for text, _ in said}) == 3
    assert len(mels) >= 3 and not {text for text, _ in said} & set(HELD_OUT)


def test_unknown_names_are_listed():
    with pytest.raises(ValueError, match="no 'tiny' at 'INT4'. Choose from FP32, FP16, INT8."):
        convert.prepare(precision="INT4")
    with pytest.raises(ValueError, match="no 'huge'. Choose from tiny, released."):
        convert.prepare("huge")


@every_kind
def test_no_operation_is_computed_wrongly_on_arm(kind, irs):
    for path in irs[kind].glob("*.xml"):
        assert wrong_on_arm(ov.Core().read_model(path)) == [], path.name


@every_vocoder
def test_every_upsampling_runs_along_two_axes(kind):
    network = vocoder(**VOCODERS[kind])
    model = convert.convert_vocoder(network)
    strides = [x.get_attributes()["strides"] for x in model.get_ops() if "BackpropData" in x.get_type_name()]
    assert sorted(map(list, strides)) == sorted([1, scale] for scale in VOCODER["upsample_scales"])
