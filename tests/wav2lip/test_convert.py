"""The converted networks compute what PyTorch does, INT8 stays close, and failures leave nothing behind."""

import shutil

import numpy as np
import openvino as ov
import pytest

from notebooks.wav2lip import convert
from notebooks.wav2lip.network import S3FD, save_tiny
from tests.wav2lip import small


def compiled(path, **properties) -> ov.CompiledModel:
    return ov.Core().compile_model(path, "CPU", small.EXACT | properties)


@pytest.mark.parametrize("batch", [1, 3])
def test_the_generator_takes_any_batch(generator_ir, batch):
    items = small.random_inputs(batch)
    faces = compiled(generator_ir)(items)["faces"]
    assert np.abs(faces - small.run(small.generator(), items["audio"], items["face"])).max() < 1e-4


def test_the_expert_embeds_as_in_pytorch(expert_ir):
    audio, face = small.random_inputs(3)["audio"], np.random.default_rng(0).random((3, 15, 48, 96), dtype=np.float32)
    found, expected = compiled(expert_ir)({"audio": audio, "face": face}), small.run(small.expert(), audio, face)
    assert np.abs(found["audio_embedding"] - expected[0]).max() < 1e-4
    assert np.abs(found["face_embedding"] - expected[1]).max() < 1e-4


def test_the_detector_takes_any_size_and_names_its_maps(tmp_path):
    made = small.randomised(S3FD())
    model = compiled(convert.convert_detector(made, tmp_path / "face_detection.xml", half=True))
    for height, width in ((48, 65), (66, 40)):
        image = np.random.default_rng(0).uniform(-120, 130, (1, 3, height, width)).astype(np.float32)
        found, expected = model({"image": image}), small.run(made, image)
        for stride, scores, offsets in zip(convert.STRIDES, expected[::2], expected[1::2], strict=True):
            for name, values in ((f"scores_{stride}", scores), (f"offsets_{stride}", offsets)):
                assert np.abs(found[name] - values).max() < 5e-3 * np.abs(values).max()


def test_half_weights_take_half_the_space_and_the_network_stays_as_it_was(generator_ir, tmp_path):
    made, items = small.generator(), small.random_inputs()
    before = small.run(made, *items.values())
    path = convert.convert_generator(made, tmp_path / "half.xml", half=True)
    assert (small.run(made, *items.values()) == before).all()
    assert path.with_suffix(".bin").stat().st_size < 0.51 * generator_ir.with_suffix(".bin").stat().st_size
    assert 0 < np.abs(compiled(path)(items)["faces"] - before).max() < 2e-3


def test_int8_holds_every_kernel_in_integers_and_stays_close(generator_ir, int8_ir):
    operations = ov.Core().read_model(int8_ir).get_ops()
    kernels = [x for x in operations if x.get_type_name() == "Constant" and len(x.get_output_shape(0)) == 4]
    integers = [x for x in kernels if x.get_output_element_type(0) == ov.Type.i8]
    assert len(integers) == sum(x.get_type_name().startswith("Convolution") for x in operations) == 51
    items = small.random_inputs(8, seed=99)
    difference = np.abs(compiled(int8_ir)(items)["faces"] - compiled(generator_ir)(items)["faces"])
    assert 0 < difference.mean() < 0.005


def test_int8_needs_inputs_to_calibrate_on(generator_ir, tmp_path):
    with pytest.raises(ValueError, match="needs inputs to calibrate on"):
        convert.quantize(generator_ir, [], tmp_path / "int8.xml")
    assert list(tmp_path.iterdir()) == []


def test_an_ir_is_replaced_whole_or_not_at_all(expert_ir, tmp_path, monkeypatch):
    shutil.copytree(expert_ir.parent, tmp_path, dirs_exist_ok=True)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert before.keys() == {"syncnet.xml", "syncnet.bin"}

    def full(model, path, compress_to_fp16):
        raise RuntimeError("no space left")

    monkeypatch.setattr(ov, "save_model", full)
    with pytest.raises(RuntimeError, match="no space left"):
        convert.convert_expert(small.expert(seed=1), tmp_path / "syncnet.xml")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_an_ir_has_its_own_kind_of_file(tmp_path):
    with pytest.raises(ValueError, match="written to an .xml file, not to syncnet.onnx"):
        convert.convert_expert(small.expert(), tmp_path / "syncnet.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A folder of models of its own, and random networks in the place of the tiny checkpoint."""
    folder = save_tiny(tmp_path / "tiny", small.generator(), small.expert())
    monkeypatch.setenv("MODELS_DIR", str(tmp_path / "models"))
    monkeypatch.setattr(convert.weights, "resolve", lambda name: folder)
    monkeypatch.setattr(convert.weights, "fetch", lambda name: folder)
    return folder


def test_the_tiny_checkpoint_is_converted_once(tiny):
    path = convert.prepare()
    assert path.name == "wav2lip.xml" and convert.prepare() == path
    items = small.random_inputs()
    expected = small.run(convert.load(), *items.values())
    assert np.abs(compiled(path)(items)["faces"] - expected).max() < 1e-4
    written = path.stat().st_mtime_ns
    expert = ov.Core().read_model(convert.prepare("syncnet", precision="FP16"))
    assert {port.any_name for port in expert.outputs} == {"audio_embedding", "face_embedding"}
    assert convert.prepare().stat().st_mtime_ns == written


def test_other_calibration_makes_another_int8(tiny, monkeypatch):
    seen = []

    def quantize(ir, items, path):
        seen.append(items)
        path.write_text("an IR", encoding="utf-8")

    monkeypatch.setattr(convert, "quantize", quantize)
    first = convert.prepare(precision="INT8", items=iter(small.CALIBRATION[:1]))
    assert convert.prepare(precision="INT8", items=small.CALIBRATION[:1]) == first
    assert convert.prepare(precision="INT8", items=small.CALIBRATION[1:2]) != first
    assert [len(items) for items in seen] == [1, 1]


def test_the_detector_of_tiny_is_the_packaged_file(tiny):
    assert convert.prepare("face_detection") == tiny
    with pytest.raises(ValueError, match="BlazeFace has no PyTorch network"):
        convert.load("face_detection")


def test_unknown_names_are_sentences():
    with pytest.raises(ValueError, match="There is no INT4 of 'wav2lip'"):
        convert.prepare(precision="INT4")
    with pytest.raises(ValueError, match="There is no INT8 of 'syncnet'"):
        convert.prepare("syncnet", precision="INT8", items=small.CALIBRATION)
    with pytest.raises(ValueError, match="There is no 'wav2lip' of 'huge'"):
        convert.prepare("wav2lip", "huge")
    with pytest.raises(ValueError, match="There is no 'vocoder' of 'tiny'"):
        convert.load("vocoder")
