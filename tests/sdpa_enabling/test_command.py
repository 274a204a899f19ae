"""The command line on a layer: what it prints and writes, and its errors."""

import openvino as ov
import pytest

from notebooks.sdpa_enabling.__main__ import main
from notebooks.sdpa_enabling.convert import to_ir
from notebooks.sdpa_enabling.network import Attention
from tests.sdpa_enabling.layers import difference, is_fused


def test_it_reports_and_writes_a_fused_model(tmp_path, capsys):
    network = Attention("masked_fill").eval()
    ov.save_model(to_ir(network), tmp_path / "layer.xml", compress_to_fp16=False)
    assert main([str(tmp_path / "layer.xml"), "-o", str(tmp_path / "fused.xml")]) == 0
    printed = capsys.readouterr().out
    assert "executed after: 1 ScaledDotProductAttention with its cache" in printed
    model = ov.Core().read_model(tmp_path / "fused.xml")
    assert is_fused(model)
    assert difference(network, model) < 1e-5


@pytest.mark.parametrize(
    ("name", "output", "message"),
    [
        ("none.xml", "a.xml", "There is no model"),
        ("bad.xml", "a.xml", "bad.xml is no model"),
        ("bad.xml", "bad.xml", "another"),
    ],
)
def test_bad_input_is_a_message(tmp_path, capsys, name, output, message):
    (tmp_path / "bad.xml").write_text("<net", encoding="utf-8")
    assert main([str(tmp_path / name), "-o", str(tmp_path / output)]) == 1
    assert message in capsys.readouterr().err
    assert (tmp_path / "bad.xml").read_text(encoding="utf-8") == "<net" and not (tmp_path / "a.xml").exists()
