"""PyTorch, OpenVINO and the pipeline against outputs of the authors' program, wherever ORACLES has them."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
import torch

from notebooks.wav2lip import convert
from notebooks.wav2lip.network import S3FD, SyncNet, Wav2Lip
from notebooks.wav2lip.pipeline import detection, lip_sync
from tests.oracles import fill
from tests.references import files, section, sections, tensor
from tests.wav2lip.small import EXACT, run

FILES = files("wav2lip")
NETWORKS = {"wav2lip": Wav2Lip, "syncnet": SyncNet, "s3fd": S3FD}
CONVERT = {
    "wav2lip": convert.convert_generator,
    "syncnet": convert.convert_expert,
    "s3fd": convert.convert_detector,
}
TOLERANCE = 1e-4
Arrays = dict[str, np.ndarray]


KEYS = {path: set(np.load(path)) for path in FILES}


def having(key: str):
    """Runs a test once for every file of reference data that has this key."""
    found = [pytest.param(path, id=f"{path.parent.name}-{path.stem}") for path in FILES if key in KEYS[path]]
    return pytest.mark.parametrize("oracle", found)


def networks():
    """Runs a test once for every file of reference data and network that it has."""
    found = [
        (path, name) for path in FILES for name in NETWORKS if any(key.startswith(f"{name}/") for key in KEYS[path])
    ]
    ids = [f"{path.parent.name}-{path.stem}-{name}" for path, name in found]
    return pytest.mark.parametrize(("oracle", "name"), found, ids=ids)


def drawn_or(stored: Arrays, key: str, name: str, shape: tuple[int, ...], low: float = 0, high: float = 1):
    """An input that is stored, or too large for that and drawn."""
    return stored[key] if key in stored else fill.uniform_input(name, shape, low, high)


@cache
def build(path: Path, name: str) -> torch.nn.Module:
    assert sections(path).keys() <= NETWORKS.keys()
    network = NETWORKS[name]()
    network.load_state_dict({key: tensor(key, entry) for key, entry in sections(path)[name]["keys"].items()})
    return network.eval()


def inputs_of(path: Path, name: str) -> tuple[np.ndarray, ...]:
    """What a network of the oracle was given, in the order of its arguments."""
    generator, stored = section(path, "wav2lip"), section(path, name)
    if name == "wav2lip":
        return stored["mel"], stored["face"]
    if name == "syncnet":
        rows = len(stored["audio_embedding"])
        mel = stored.get("mel", generator["mel"][:rows])
        return mel, drawn_or(stored, "face", "syncnet.face", (rows, *convert.LOWER_HALVES))
    batch, _, height, width = stored["out0"].shape
    return (drawn_or(stored, "img", "s3fd.img", (batch, 3, 4 * height, 4 * width), -120, 130),)


def outputs_of(name: str, outputs: list[np.ndarray] | np.ndarray) -> Arrays:
    """A network's outputs, by their names in the oracle."""
    if name == "wav2lip":
        return {"out": outputs}
    if name == "syncnet":
        return dict(zip(("audio_embedding", "face_embedding"), outputs, strict=True))
    return {f"out{i}": x for i, x in enumerate(outputs)}


def worst(ours: Arrays, reference: Arrays) -> dict[str, float]:
    """The largest difference of every array of `ours` from the reference."""
    assert ours
    for name, values in ours.items():
        assert values.shape == reference[name].shape, name
    return {name: float(np.abs(values - reference[name].astype(np.float64)).max()) for name, values in ours.items()}


def assert_equal(ours: Arrays, reference: Arrays) -> None:
    differences = worst(ours, reference)
    assert max(differences.values()) <= TOLERANCE, differences


def test_there_is_reference_data_and_all_of_it_is_known():
    assert FILES
    known = {
        "wav2lip": {"mel", "face", "mel5", "face5", "out", "out5", "audio_embedding", "face_feat"},
        "syncnet": {"mel", "face", "audio_embedding", "face_embedding"},
        "s3fd": {"img", "out", "detections", "n_candidates"},
        "mel": {"wav", "mel", "mel_reflect_padding_as_librosa_0_7", "noise_note", "chunk_starts_fps"},
        "img": {"face_bgr", "resized", "batch"},
        "boxes": {"in", "smoothed"},
    }
    for path in FILES:
        for key in KEYS[path]:
            name, _, what = key.partition("/")
            assert {what, what.rstrip("0123456789.")} & known.get(name, set()), f"{key} of {path} is not known"


@networks()
def test_pytorch(oracle, name):
    outputs = outputs_of(name, run(build(oracle, name), *inputs_of(oracle, name)))
    assert_equal(outputs, section(oracle, name))


@networks()
def test_openvino(oracle, name, tmp_path):
    path = CONVERT[name](build(oracle, name), tmp_path / f"{name}.xml")
    outputs = ov.Core().compile_model(path, "CPU", EXACT)(inputs_of(oracle, name))
    named = outputs_of(name, outputs[0] if name == "wav2lip" else list(outputs.values()))
    assert_equal(named, section(oracle, name))


@having("wav2lip/face_feat0")
def test_stages_of_the_generator(oracle):
    network, stored = build(oracle, "wav2lip"), section(oracle, "wav2lip")
    with torch.inference_mode():
        features = network.encode(torch.from_numpy(stored["face"]))
        stages = {f"face_feat{i}": x.numpy() for i, x in enumerate(features)}
        stages["audio_embedding"] = network.audio_encoder(torch.from_numpy(stored["mel"])).numpy()
    assert {name for name in stored if name.startswith("face_feat")} <= stages.keys()
    # of the largest maps only the first rows and channels are stored
    kept = {name: stages[name][tuple(map(slice, stored[name].shape))] for name in stages.keys() & stored.keys()}
    assert_equal(kept, stored)


@having("wav2lip/mel5")
def test_frames_in_a_row(oracle):
    stored = section(oracle, "wav2lip")
    batch, frames = stored["mel5"].shape[:2]
    face = drawn_or(stored, "face5", "wav2lip.face5", (batch, 6, frames, 96, 96))
    assert_equal({"out5": run(build(oracle, "wav2lip"), stored["mel5"], face)}, stored)


@having("s3fd/detections")
def test_faces_decoded_from_the_detector_s_maps(oracle, monkeypatch):
    stored = section(oracle, "s3fd")
    maps = [(stored[f"out{2 * i}"][0], stored[f"out{2 * i + 1}"][0]) for i in range(len(convert.STRIDES))]
    faces = detection.decode_s3fd(maps)
    assert_equal({"detections": faces[faces[:, 4] > detection.MIN_SCORE]}, stored)
    monkeypatch.setattr(detection, "S3FD_OVERLAP", 1.0)  # nothing is suppressed
    assert len(detection.decode_s3fd(maps)) == stored["n_candidates"]


@having("boxes/in")
def test_boxes_smoothed(oracle):
    stored = section(oracle, "boxes")
    boxes = [tuple(box) for box in stored["in"].tolist()]
    smoothed = np.array([box for _, box in lip_sync.smoothed(enumerate(boxes))])
    assert_equal({"smoothed": smoothed}, stored)


@having("img/face_bgr")
def test_face_cut_and_masked(oracle):
    stored = section(oracle, "img")
    height, width = stored["face_bgr"].shape[:2]
    crop = lip_sync.cut(stored["face_bgr"], (0, 0, width, height))
    assert (crop == stored["resized"]).all()
    step = lip_sync.SIDE // stored["batch"].shape[-1]  # only these pixels are stored
    assert_equal({"batch": lip_sync.generator_face(crop)[None, :, ::step, ::step]}, stored)


def sound(path: Path) -> np.ndarray:
    """The oracle's sound: stored, or made as its note says, where only the length may be another."""
    stored = section(path, "mel")
    if "wav" in stored:
        return stored["wav"]
    length = int(re.search(r'"wav2lip\.noise",\((\d+),\)', str(stored["noise_note"]))[1])
    t = np.arange(length) / lip_sync.SAMPLE_RATE
    tones = 0.3 * np.sin(2 * np.pi * 220 * t) + 0.2 * np.sin(2 * np.pi * (300 + 500 * t) * t)
    return (tones + 0.02 * fill.normal_input("wav2lip.noise", (length,))).astype(np.float32)


@having("mel/mel")
def test_mel_spectrogram(oracle):
    """Mirrored at the ends as in the authors' environment; with zeros there only two frames at each end differ."""
    stored, mel = section(oracle, "mel"), lip_sync.melspectrogram(sound(oracle))
    assert_equal({"mel_reflect_padding_as_librosa_0_7": mel}, stored)
    assert mel.shape == stored["mel"].shape
    assert_equal({"inner": mel[:, 2:-2]}, {"inner": stored["mel"][:, 2:-2]})


@having("mel/mel")
def test_windows_of_sound(oracle):
    stored = section(oracle, "mel")
    rates = [name.removeprefix("chunk_starts_fps") for name in stored if name.startswith("chunk_starts_fps")]
    assert rates
    for fps in rates:
        starts = lip_sync.chunk_starts(stored["mel"].shape[1], float(fps))
        assert starts == stored[f"chunk_starts_fps{fps}"].tolist()
