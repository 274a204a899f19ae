"""IR folders of several sub-models are converted once, compressed from the FP16 ones, file by file."""

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from utils import preflight
from utils.models import parts

MODELS = {
    "tiny": {"checkpoint": "toy_tiny", "group_size": 64, "ram_gb": 2},
    "released": {"checkpoint": "toy", "group_size": 128, "ram_gb": 10},
}


def to_ir(checkpoint: Path, folder: Path) -> None:
    (folder / "ir").write_text(checkpoint.name, encoding="utf-8")


def compress(ir: Path, precision: str, group_size: int, folder: Path) -> None:
    (folder / "ir").write_text(f"{(ir / 'ir').read_text(encoding='utf-8')} {precision} {group_size}", encoding="utf-8")


def fail(checkpoint: Path, folder: Path) -> None:
    (folder / "ir").write_text("half", encoding="utf-8")
    raise ValueError("This checkpoint is damaged.")


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """The conversion steps that ran, and the memory they asked for; temporary folders, and no child process."""
    monkeypatch.setenv("MODELS_DIR", str(tmp_path))
    for settings in MODELS.values():
        (tmp_path / settings["checkpoint"]).mkdir()
        (tmp_path / settings["checkpoint"] / "model.safetensors").write_bytes(b"weights")
    monkeypatch.setattr(parts.weights, "resolve", lambda name: tmp_path / name)
    calls = []

    def in_child(function, *arguments, **options):
        calls.append(function.__name__)
        function(*arguments)

    monkeypatch.setattr(preflight, "in_child", in_child)
    monkeypatch.setattr(preflight, "check", lambda **needs: calls.append(needs["ram_gb"]))
    return calls


def prepare(model: str, precision: str, to_ir=to_ir) -> Path:
    return parts.prepare("toy", MODELS, model, precision, to_ir, compress)


def test_a_model_is_converted_once_for_all_precisions(calls):
    folders = [prepare("tiny", precision) for precision in ("INT4", "FP16", "INT8", "INT4")]
    assert [(folder / "ir").read_text(encoding="utf-8") for folder in folders[:3]] == [
        "toy_tiny INT4 64",
        "toy_tiny",
        "toy_tiny INT8 64",
    ]
    assert folders[3] == folders[0] and len({*folders}) == 3
    assert [name for name in calls if isinstance(name, str)] == ["to_ir", "compress", "compress"]


def test_models_are_kept_apart_and_ask_for_their_memory(calls):
    assert prepare("tiny", "FP16") != prepare("released", "FP16")
    assert (prepare("released", "INT4") / "ir").read_text(encoding="utf-8") == "toy INT4 128"
    assert [needed for needed in calls if not isinstance(needed, str)] == [2, 10, 10]


def test_a_failed_conversion_leaves_nothing(calls, tmp_path):
    with pytest.raises(ValueError, match="damaged"):
        prepare("tiny", "FP16", fail)
    assert [path for path in (tmp_path / "ir").iterdir() if path.is_dir()] == []
    assert (prepare("tiny", "FP16") / "ir").read_text(encoding="utf-8") == "toy_tiny"


def test_unknown_names_are_errors(calls):
    with pytest.raises(ValueError, match="There is no INT2 of 'tiny'.*precisions: FP16, INT8, INT4"):
        prepare("tiny", "INT2")
    with pytest.raises(ValueError, match="There is no FP16 of 'huge'.*Models: tiny, released"):
        prepare("huge", "FP16")
    assert calls == []


@pytest.fixture(scope="module")
def ir(tmp_path_factory) -> Path:
    """Three sub-models of one matrix product each, and a file that is none of them."""
    folder = tmp_path_factory.mktemp("ir")
    values = np.random.default_rng(0).normal(size=(256, 256)).astype(np.float32)
    for part in ("language", "vision", "decoder"):
        x = opset13.parameter([-1, 256], np.float32)
        ov.save_model(ov.Model([opset13.matmul(x, values, False, True)], [x], part), folder / parts.xml(part))
    (folder / "config.json").write_text("{}", encoding="utf-8")
    (folder / "manifest.json").write_text("{}", encoding="utf-8")
    return folder


def types(path: Path) -> set[str]:
    """Element types of the constants that are as large as weights."""
    model = ov.Core().read_model(path)
    constants = [op for op in model.get_ops() if op.get_type_name() == "Constant"]
    return {op.get_element_type().get_type_name() for op in constants if np.prod(op.get_output_shape(0)) > 8000}


@pytest.mark.parametrize(("precision", "language"), [("INT8", "u8"), ("INT4", "u4")])
def test_named_parts_are_compressed_and_the_rest_is_copied(ir, tmp_path, precision, language):
    parts.compress(ir, precision, tmp_path, ["language", "vision"], {"group_size": 64, "all_layers": True})
    found = {part: types(tmp_path / parts.xml(part)) for part in ("language", "vision", "decoder")}
    assert found == {"language": {language}, "vision": {"u8"}, "decoder": {"f16"}}
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in ir.iterdir()} - {"manifest.json"}


def test_another_precision_is_an_error(ir, tmp_path):
    with pytest.raises(ValueError, match="no precision 'FP16' to compress to. Choose one of: INT8, INT4"):
        parts.compress(ir, "FP16", tmp_path / "compressed", ["language"], {})
    assert not (tmp_path / "compressed").exists()
