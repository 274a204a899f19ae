"""The demo: its function, and in a real browser."""

import re

import pytest
import torch

from notebooks.arm import data, demo, measuring


@pytest.fixture(scope="module")
def address(serve_demo):
    return serve_demo(demo.make_demo())


@pytest.mark.parametrize(("form", "same"), [("as written", False), ("right on ARM", True)])
def test_the_table_shows_both_results(form, same):
    rows, noisy, here, arm, figure = demo.clean(form, data.NOISE)
    assert [row[1] for row in rows] == ["f32", "f32"] and "emulated" in rows[1][0]
    expected = data.snr_db(measuring.reference(), data.melody())
    assert (abs(float(rows[1][2]) - expected) < 0.1) == same
    assert noisy[0] == data.RATE_HZ and noisy[1].shape == here[1].shape == arm[1].shape
    assert len(figure.axes) == 2


@pytest.mark.parametrize(
    ("form", "noise", "message"),
    [
        ("none", 0.05, "Choose one of: as written"),
        ("as written", None, "from 0 to 0.2"),
        ("as written", 1, "from 0 to 0.2"),
    ],
)
def test_bad_input_is_an_error(form, noise, message):
    with pytest.raises(ValueError, match=message):
        demo.clean(form, noise)


def test_without_an_emulator_another_noise_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("MODELS_DIR", str(tmp_path))
    assert demo.clean("as written", data.NOISE)
    with pytest.raises(ValueError, match="other inputs"):
        demo.clean("as written", 0.1)


def test_a_visitor_finds_an_answered_example_and_sends_a_model(address, visit, tmp_path):
    from playwright.sync_api import expect

    (tmp_path / "broken.onnx").write_bytes(b"no model")
    layer = torch.nn.ConvTranspose1d(4, 2, 4, 2)
    torch.onnx.export(layer, torch.zeros(1, 4, 8), tmp_path / "layer.onnx", dynamo=False)
    with visit(address, height=1800) as page:
        expect(page.get_by_text("ARM, emulated (").last).to_be_visible(timeout=120_000)
        expect(page.locator("img")).to_have_count(1, timeout=180_000)
        page.locator("input[accept='.onnx']").set_input_files(tmp_path / "layer.onnx")
        answer = page.get_by_label("Operations that are wrong on ARM")
        expect(answer).to_have_value(re.compile("^wrong on ARM: "), timeout=180_000)
        page.get_by_label("Clear").last.click()
        page.locator("input[accept='.onnx']").set_input_files(tmp_path / "broken.onnx")
        expect(page.get_by_text("broken.onnx is no model that OpenVINO reads")).to_be_visible(timeout=180_000)
