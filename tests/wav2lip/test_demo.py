"""The demo: its functions, over gradio_client, and in a real browser, with a small random generator."""

import re
from pathlib import Path

import cv2
import pytest
from gradio_client import Client, handle_file

from notebooks.wav2lip import demo
from notebooks.wav2lip.data.speech import HELD_OUT_VOICES
from notebooks.wav2lip.pipeline import PASTES, LipSync, Report
from notebooks.wav2lip.pipeline.media import read_frames, sound_seconds
from tests.wav2lip.files import hopper, plain, sound, tone, video
from utils import weights


@pytest.fixture(scope="module")
def samples(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("samples")
    cv2.imwrite(str(folder / "hopper.jpg"), hopper(200))
    cv2.imwrite(str(folder / "hopper.png"), hopper(200))
    video(folder / "face.mp4", [hopper(200)] * 5)
    video(folder / "hopper.mp4", [hopper(200)] * 5)
    video(folder / "nobody.mp4", plain(5))
    sound(folder / "voice.wav", tone(0.6))
    return folder


@pytest.fixture(scope="module", autouse=True)
def small(generator_ir):
    """A random generator in the place of the tiny one."""
    made = LipSync(generator_ir, weights.fetch("blazeface"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "_lip_sync", lambda model, device, generator: made)
        yield


@pytest.fixture(scope="module")
def address(samples, serve_demo):
    return serve_demo(demo.make_demo(samples=samples))


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


def test_a_typed_text_becomes_speech(tmp_path):
    first, second = (demo.say(text, "Alex", tmp_path / "voice.wav") for text in ("Hello.", "Hello, how are you today?"))
    assert first == second and sound_seconds(second) > 1
    lengths = [sound_seconds(demo.say("One, two, three.", name, tmp_path / "voice.wav")) for name in demo.VOICES]
    assert len(set(lengths)) == len(demo.VOICES)
    for text, message in [(" ", "nothing to say yet"), ("...", "nothing to say in"), (401 * "a", "has 401 characters")]:
        with pytest.raises(ValueError, match=message):
            demo.say(text, "Alex", tmp_path / "other.wav")
    assert not (tmp_path / "other.wav").exists()


def test_the_voices_and_the_faces_are_there():
    assert set(demo.VOICES.values()) < {variant for _, variant in HELD_OUT_VOICES}
    assert len(demo.FACES) == 3 and all((demo.SAMPLES / file).is_file() for file in demo.FACES.values())
    assert set(demo.PASTE_LABELS) == set(PASTES)


def test_a_client_gets_videos_and_sentences(address, samples):
    client = Client(address, verbose=False)
    face, voice = handle_file(samples / "hopper.mp4"), handle_file(samples / "voice.wav")

    def predict(kind, video, photo, source, recording, static=False, text=""):
        inputs = [kind, video, photo, source, text, "Alex", recording, "feathered", static]
        return client.predict(*inputs, api_name="/speak")

    result, told = predict(demo.OWN_VIDEO, face, None, demo.RECORDED, voice, True)
    path = Path(result["video"] if isinstance(result, dict) else result)
    assert told.startswith("15 frames in ") and sound_seconds(path) == pytest.approx(0.6, abs=0.06)
    photo = handle_file(samples / "hopper.png")
    result, told = predict(demo.OWN_PHOTO, None, photo, demo.RECORDED, voice)
    assert told.startswith("15 frames in ")
    result, told = predict("Grace Hopper", None, photo, demo.TYPED, None, text="Good morning.")
    assert re.match(r"[1-4]\d frames in ", told)
    with pytest.raises(Exception, match="There is no face yet"):
        predict(demo.OWN_PHOTO, face, None, demo.RECORDED, voice)
    with pytest.raises(Exception, match="There is no voice yet"):
        predict(demo.OWN_PHOTO, None, photo, demo.RECORDED, None)
    with pytest.raises(Exception, match="nothing to say yet"):
        predict(demo.OWN_PHOTO, None, photo, demo.TYPED, voice)
    with pytest.raises(Exception, match="No face was found"):
        predict(demo.OWN_VIDEO, handle_file(samples / "nobody.mp4"), None, demo.RECORDED, voice)


def test_only_the_faces_that_are_there_are_offered(samples):
    with demo.make_demo(samples=samples) as blocks:
        (faces,) = (block.choices for block in blocks.blocks.values() if getattr(block, "label", "") == "Face")
    names = [name for name, _ in faces]
    assert names == ["Grace Hopper", "A drawn head", demo.OWN_VIDEO, demo.OWN_PHOTO]


def test_a_visitor_sees_an_answered_example_then_their_own(address, samples, visit):
    from playwright.sync_api import expect

    with visit(address, height=1700) as page:
        notes = page.get_by_label("About the result")
        expect(notes).to_have_value(re.compile(r"^\d+ frames in "), timeout=180_000)
        expect(page.locator("#photo img")).to_be_visible(timeout=180_000)
        expect(page.locator("video:visible")).to_have_count(1, timeout=180_000)
        example = notes.input_value()

        page.get_by_label("What the face should say").fill("Yes.")
        page.get_by_role("button", name="Make it speak").click()
        expect(notes).not_to_have_value(example, timeout=180_000)
        expect(notes).to_have_value(re.compile(r"^\d+ frames in "), timeout=180_000)

        page.get_by_label("A drawn head").check()  # a video beside its result
        expect(page.locator("video:visible")).to_have_count(2, timeout=180_000)

        page.get_by_label("What the face should say").fill(" ")
        page.get_by_role("button", name="Make it speak").click()
        expect(page.get_by_text("There is nothing to say yet").first).to_be_visible(timeout=180_000)


def test_a_visitor_gives_their_own_face_and_recording(address, samples, visit):
    from playwright.sync_api import expect

    with visit(address, height=1700) as page:
        notes = page.get_by_label("About the result")
        expect(notes).to_have_value(re.compile(r"^\d+ frames in "), timeout=180_000)
        page.get_by_label(demo.OWN_VIDEO).check()
        page.get_by_label(demo.RECORDED).check()
        expect(page.get_by_label("What the face should say")).to_be_hidden(timeout=180_000)
        page.get_by_role("button", name="Make it speak").click()
        expect(page.get_by_text("There is no face yet").first).to_be_visible(timeout=180_000)
        for which, name in ((0, "hopper.mp4"), (-1, "voice.wav")):
            with page.expect_response("**/upload*"):
                page.locator("input[type=file]").nth(which).set_input_files(samples / name)
        expect(page.locator("video:visible")).to_have_count(2, timeout=180_000)
        expect(page.get_by_label("Play").last).to_be_visible(timeout=180_000)
        page.get_by_role("button", name="Make it speak").click()
        expect(notes).to_have_value(re.compile("^15 frames in "), timeout=180_000)
