"""The demo: its functions, over gradio_client, and in a real browser, with a small random generator."""

import re
from pathlib import Path

import cv2
import gradio as gr
import pytest
from gradio_client import Client, handle_file

from notebooks.wav2lip import demo
from notebooks.wav2lip.pipeline import LipSync, Report
from notebooks.wav2lip.pipeline.media import read_frames, sound_seconds
from tests.wav2lip.files import hopper, plain, sound, tone, video
from utils import weights
from utils.demo import start


@pytest.fixture(scope="module")
def samples(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("samples")
    cv2.imwrite(str(folder / "hopper.png"), hopper(200))
    video(folder / "hopper.mp4", [hopper(200)] * 5)
    video(folder / "nobody.mp4", plain(5))
    sound(folder / "voice.wav", tone(0.6))
    return folder


@pytest.fixture(scope="module", autouse=True)
def small(generator_ir):
    """A random generator in the place of the tiny one."""
    made = LipSync(generator_ir, weights.fetch("blazeface"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "_lip_sync", lambda model, device: made)
        yield


@pytest.fixture(scope="module")
def address(samples):
    blocks = demo.make_demo(samples=samples)
    yield start(blocks)
    blocks.close()


def test_pictures_are_bounded(samples, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "MAX_SIDE", 120)
    report = demo.speak(samples / "hopper.mp4", samples / "voice.wav", False, tmp_path / "a.mp4")
    assert next(read_frames(report.path, report.fps)).shape[:2] == (120, 104)
    assert demo.about(report).startswith("15 frames in ")
    assert demo.about(Report(tmp_path, 25, 5, 2.0, {"draw": 1.5}, ["It is so.", "And so."])) == (
        "5 frames in 2.0 s; the slowest stage: draw. It is so. And so."
    )


def test_what_is_missing_or_too_long_is_a_sentence(samples, tmp_path, monkeypatch):
    face, voice, result = str(samples / "hopper.png"), str(samples / "voice.wav"), tmp_path / "a.mp4"
    with pytest.raises(ValueError, match="There is no face yet"):
        demo.speak(None, voice, False, result)
    with pytest.raises(ValueError, match="There is no voice yet"):
        demo.speak(face, None, False, result)
    monkeypatch.setattr(demo, "MAX_VOICE_S", 0.5)
    with pytest.raises(ValueError, match="The voice lasts 1 seconds, the demo takes up to 0.5. Cut it"):
        demo.speak(face, voice, False, result)
    monkeypatch.setattr(demo, "sound_seconds", lambda voice: None)  # as in what browsers record
    with pytest.raises(ValueError, match="The voice lasts 1 seconds"):
        demo.speak(face, voice, False, result)
    assert not result.exists()


def test_a_client_gets_videos_and_sentences(address, samples):
    client = Client(address, verbose=False)
    face, voice = handle_file(samples / "hopper.mp4"), handle_file(samples / "voice.wav")
    result, told = client.predict("Video", face, None, voice, True, api_name="/speak")
    path = Path(result["video"] if isinstance(result, dict) else result)
    assert told.startswith("15 frames in ") and sound_seconds(path) == pytest.approx(0.6, abs=0.06)
    result, told = client.predict("Photo", None, handle_file(samples / "hopper.png"), voice, False, api_name="/speak")
    assert told.startswith("15 frames in ")
    with pytest.raises(Exception, match="There is no face yet"):
        client.predict("Photo", face, None, voice, False, api_name="/speak")
    with pytest.raises(Exception, match="No face was found"):
        client.predict("Video", handle_file(samples / "nobody.mp4"), None, voice, False, api_name="/speak")


def test_every_sample_is_a_face_and_a_voice(samples):
    with demo.make_demo(samples=samples) as blocks:
        offered = [block.raw_samples for block in blocks.blocks.values() if isinstance(block, gr.Dataset)]
    names = [[(kind, Path(face).name, Path(voice).name) for kind, face, voice in rows] for rows in offered]
    videos = [("Video", name, "voice.wav") for name in ("hopper.mp4", "nobody.mp4")]
    assert names == [videos, [("Photo", "hopper.png", "voice.wav")]]


def test_a_visitor_sees_original_and_result(address, samples, visit):
    from playwright.sync_api import expect

    with visit(address, height=1700) as page:
        page.get_by_role("button", name="Make it speak").click()
        expect(page.get_by_text("There is no face yet").first).to_be_visible(timeout=30_000)
        for which, name in ((0, "hopper.mp4"), (-1, "voice.wav")):
            with page.expect_response("**/upload*"):
                page.locator("input[type=file]").nth(which).set_input_files(samples / name)
        expect(page.locator("video").first).to_be_visible(timeout=30_000)
        expect(page.get_by_label("Play").last).to_be_visible(timeout=30_000)
        page.get_by_role("button", name="Make it speak").click()
        expect(page.get_by_label("About the result")).to_have_value(re.compile("^15 frames in "), timeout=60_000)
        expect(page.locator("video").last).to_be_visible(timeout=30_000)
        page.get_by_text("Photo", exact=True).last.click()  # the sample
        expect(page.get_by_label("Photo", exact=True)).to_be_checked()
