"""The pipeline: what the generator is given, what becomes of what it draws, and what a run does with odd input.

Most tests put a stand-in with a known answer in the generator's place, tell the detector where the face is, and look
at the frames before they are encoded.
"""

import threading
import wave
from fractions import Fraction

import cv2
import numpy as np
import openvino.opset13 as ops
import pytest

from notebooks.wav2lip.pipeline import LipSync, ahead, chunk_starts, melspectrogram, smoothed
from notebooks.wav2lip.pipeline import lip_sync as pipeline
from notebooks.wav2lip.pipeline.media import frame_rate, read_frames, sound_seconds
from tests.wav2lip.files import RATE, channels, generator, hopper, plain, sound, tone, video
from utils import weights

BOX = np.array([20, 10, 52, 42, 0.9], np.float32)  # in pictures of 80 x 64; as cut: 20, 10, 52, 52
F32 = {"INFERENCE_PRECISION_HINT": "f32"}


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    """Generators by what they draw: what is masked, what is whole, one colour, the first mel value as a grey."""
    folder = tmp_path_factory.mktemp("generators")

    def filled(face, values):
        return ops.broadcast(values, ops.shape_of(channels(face, 3)))

    def heard(audio, face):
        first = ops.slice(audio, [0, 0], [1, 1], [1, 1], [2, 3])
        return filled(face, (first + np.array([4], np.float32)) / np.array([8], np.float32))

    draw = {
        "masked": lambda audio, face: channels(face, 0),
        "whole": lambda audio, face: channels(face, 3),
        "colour": lambda audio, face: filled(face, ops.constant(np.float32([[[[0.1]], [[0.5]], [[0.999]]]]))),
        "heard": heard,
    }
    return {name: generator(folder / f"{name}.xml", node) for name, node in draw.items()}


@pytest.fixture
def written(monkeypatch):
    """The frames that would be encoded."""
    frames = []

    class Kept:
        def __init__(self, *arguments):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def write(self, picture):
            frames.append(picture.copy())

    monkeypatch.setattr(pipeline, "Writer", Kept)
    return frames


@pytest.fixture(scope="module")
def voice(tmp_path_factory):
    """0.8 seconds: 20 frames at 25 a second."""
    return sound(tmp_path_factory.mktemp("voice") / "voice.wav", tone(0.8))


class WholeFace(LipSync):
    """Pastes the rectangle, in which a test sees the generator's picture as it is."""

    def __call__(self, *files, **options):
        return super().__call__(*files, **{"paste": "rectangle"} | options)


def lip_sync(path, faces=None, **options) -> LipSync:
    """With a detector that finds BOX, or what `faces` says of the number that is the picture's blue / 10."""
    made = WholeFace(path, weights.fetch("blazeface"), **options, **F32)
    made.detector = lambda picture: (faces or (lambda number: BOX[None]))(int(picture[-1, -1, 0]) // 10)
    return made


def test_only_the_face_is_drawn_anew_in_the_order_of_its_colours(stand_ins, written, voice, tmp_path):
    lip_sync(stand_ins["colour"])(video(tmp_path / "a.mp4", plain(20)), voice)
    for number, frame in enumerate(written):
        expected = plain(20)[number].copy()
        expected[10:52, 20:52] = 25, 127, 254  # what the generator says, cut off to whole numbers
        assert (frame == expected).all()
    assert len(written) == 20


def test_the_generator_sees_no_mouth(stand_ins, written, voice, tmp_path):
    picture = cv2.GaussianBlur(cv2.resize(hopper(), (80, 64)), (0, 0), 2)
    lip_sync(stand_ins["masked"])(video(tmp_path / "a.mp4", [picture]), voice)
    (above, below), given = np.vsplit(written[0][10:52, 20:52].astype(int), 2), picture[10:31, 20:52]
    assert not below[2:].any()
    assert np.abs(above[:-2] - given[:-2]).max() <= 12 and given.std() > 30  # scaled there and back


def test_the_generator_sees_whom_to_draw(stand_ins, written, voice, tmp_path):
    picture = cv2.GaussianBlur(cv2.resize(hopper(), (80, 64)), (0, 0), 2)
    lip_sync(stand_ins["whole"])(video(tmp_path / "a.mp4", [picture]), voice)
    assert np.abs(written[0].astype(int) - picture).max() <= 10


@pytest.mark.parametrize("fps", [25, Fraction(30000, 1001)])
def test_every_picture_hears_its_own_moment(stand_ins, written, tmp_path, fps):
    samples = tone(1.3)
    path = sound(tmp_path / "voice.wav", samples)
    lip_sync(stand_ins["heard"], batch=4)(video(tmp_path / "a.mp4", plain(3), fps), path)
    mel = melspectrogram(samples[0])
    starts = chunk_starts(mel.shape[1], float(fps))
    starts += starts[-1:] * (round(1.3 * fps) - len(starts))  # to the end of the sound
    expected = (mel[0, starts] + 4) / 8 * 255
    assert np.ptp(expected) > 50
    assert [int(frame[30, 30, 1]) for frame in written] == pytest.approx(expected, abs=1.1)


@pytest.mark.parametrize(("fps", "length"), [(25, 104), (30, 110), (29.97, 64), (60, 17), (12, 16), (100, 40)])
def test_windows_are_those_of_the_authors_then_the_last_one(fps, length):
    mel = np.arange(80 * length, dtype=np.float32).reshape(80, length)
    whole = np.stack(list(pipeline.mel_windows([mel], fps)))
    starts = chunk_starts(length, fps)
    assert (whole[: len(starts)] == np.stack([mel[:, s : s + 16] for s in starts])).all()
    assert (whole[len(starts) :] == mel[:, -16:]).all()
    assert len(whole) == max(len(starts), round((length - 1) * fps / 80))
    for cuts in ([1, 2, 3], range(5, length, 5), [15, length - 1]):
        pieces = np.split(mel, list(cuts), axis=1)
        assert (np.stack(list(pipeline.mel_windows(pieces, fps))) == whole).all()


@pytest.mark.parametrize("size", [1, 333, 5000])
def test_the_spectrogram_in_blocks_is_that_of_the_whole(size):
    samples = tone(0.5)[0]
    blocks = [samples[i : i + size] for i in range(0, len(samples), size)]
    mel = np.concatenate(list(pipeline.mel_blocks([samples[:0], *blocks, samples[:0]])), 1)  # empty ones change nothing
    assert np.abs(mel - melspectrogram(samples)).max() < 1e-6 and np.ptp(mel) > 4


@pytest.mark.parametrize("samples", [0, 300, 2900])
def test_too_little_sound_is_a_sentence(stand_ins, tmp_path, samples):
    with wave.open(str(tmp_path / "voice.wav"), "wb") as file:
        file.setparams((1, 2, RATE, samples, "NONE", ""))
        file.writeframes(b"\1\2" * samples)
    face = video(tmp_path / "a.mp4", plain(3))
    with pytest.raises(ValueError, match="The sound has .* mel frames, one frame needs 16: give at least 0.2 seconds"):
        lip_sync(stand_ins["whole"])(face, tmp_path / "voice.wav", tmp_path / "result.mp4")
    assert {path.name for path in tmp_path.iterdir()} == {"a.mp4", "voice.wav"}
    with pytest.raises(ValueError, match="The sound has 15 mel frames"):
        chunk_starts(15, 25)


def in_place(boxes: np.ndarray) -> np.ndarray:
    """The authors' smoothing: each box becomes the mean of five, those before it already are."""
    boxes = boxes.copy()
    for i in range(len(boxes)):
        boxes[i] = boxes[len(boxes) - 5 :].mean(0) if i + 5 > len(boxes) else boxes[i : i + 5].mean(0)
    return boxes


@pytest.mark.parametrize("count", range(1, 13))
def test_boxes_are_smoothed_in_place(count):
    boxes = np.random.default_rng(count).integers(0, 400, (count, 4))
    found = list(smoothed((i, tuple(box)) for i, box in enumerate(boxes.tolist())))
    assert [item for item, _ in found] == list(range(count))
    assert (np.array([box for _, box in found]) == in_place(boxes)).all()


def test_a_video_shorter_than_the_sound_begins_again(stand_ins, written, voice, tmp_path):
    looked = []

    def faces(number):
        looked.append(number)
        return BOX[None] + [number, 0, number, 0, 0]

    lip_sync(stand_ins["colour"], faces)(video(tmp_path / "a.mp4", plain(8)), voice)
    assert [int(frame[-1, -1, 0]) // 10 for frame in written] == [*range(8), *range(8), *range(4)]
    assert looked == list(range(8))
    drawn = [int(np.flatnonzero(frame[20, :, 1] == 127)[0]) for frame in written]
    smooth = in_place(np.array([[20 + i] * 4 for i in range(8)]))[:, 0].tolist()
    assert drawn == [*smooth, *smooth, *smooth[:4]]


def test_a_longer_video_is_cut(stand_ins, written, voice, tmp_path):
    report = lip_sync(stand_ins["colour"])(video(tmp_path / "a.mp4", plain(25)), voice)
    assert [int(frame[-1, -1, 0]) // 10 for frame in written] == list(range(20))
    assert (report.frames, report.seconds, report.fps) == (20, 0.8, 25)


@pytest.mark.parametrize("name", ["a.mp4", "a.png"])
def test_a_still_is_looked_at_once(stand_ins, written, voice, tmp_path, name):
    looked = []

    def faces(number):
        looked.append(number)
        return BOX[None]

    if name == "a.png":
        cv2.imwrite(str(tmp_path / name), plain(1)[0])
    else:
        video(tmp_path / name, plain(5))
    lip_sync(stand_ins["colour"], faces)(tmp_path / name, voice, static=True)
    assert looked == [0] and len(written) == 20
    assert all((frame == written[0]).all() for frame in written) and (written[0] == (25, 127, 254)).all(-1).any()


def test_the_box_gains_its_padding(stand_ins, written, voice, tmp_path):
    face = video(tmp_path / "a.mp4", plain(1))
    for pads, expected in (((0, 10, 0, 0), (20, 10, 51, 51)), ((4, 0, 30, 2), (0, 6, 53, 41))):
        written.clear()
        lip_sync(stand_ins["colour"])(face, voice, pads=pads)
        rows, columns = np.nonzero((written[0] == (25, 127, 254)).all(-1))
        assert (columns.min(), rows.min(), columns.max(), rows.max()) == expected


def test_the_largest_face_is_taken_and_followed(stand_ins, written, voice, tmp_path):
    left = np.array([2, 10, 22, 30, 0.8], np.float32)

    def faces(number):
        right = np.array([50, 10, 65 + number, 25 + number, 0.9], np.float32)  # outgrows the other
        return np.stack([right, left])

    report = lip_sync(stand_ins["colour"], faces)(video(tmp_path / "a.mp4", plain(20)), voice)
    assert {int(np.flatnonzero(frame[20, :, 1] == 127)[0]) for frame in written} == {2}
    assert report.notes == ["20 of 20 frames show several faces: the largest was taken and followed."]


def test_frames_without_a_face(stand_ins, written, voice, tmp_path):
    seen = {2: 20, 3: 20, 4: 20, 5: 20, 6: 20, 9: 40, 10: 40, 11: 40, 12: 40, 13: 40}

    def faces(number):
        return BOX[None] + [[seen[number] - 20, 0, seen[number] - 20, 0, 0]] if number in seen else np.empty((0, 5))

    report = lip_sync(stand_ins["colour"], faces, batch=3)(video(tmp_path / "a.mp4", plain(14)), voice)
    drawn = [np.flatnonzero(frame[20, :, 1] == 127) for frame in written[:14]]
    assert [int(columns[0]) if len(columns) else None for columns in drawn[:5]] == [None, None, 20, 20, 20]
    assert (written[1] == plain(2)[1]).all()
    assert [int(columns[0]) for columns in drawn[5:11]] == [24, 28, 32, 36, 40, 40]  # means of five
    assert report.notes == [
        "2 of 14 frames show no face: the last place of one was used.",
        "2 of 14 frames come before the first face: they stay as they are.",
    ]


@pytest.mark.parametrize("patience", [250, 5])
def test_no_face_at_all_is_a_sentence(stand_ins, voice, tmp_path, monkeypatch, patience):
    monkeypatch.setattr(pipeline, "PATIENCE", patience)
    made = lip_sync(stand_ins["colour"], lambda number: np.empty((0, 5), np.float32))
    (tmp_path / "result.mp4").write_bytes(b"earlier")
    with pytest.raises(ValueError, match=rf"No face was found \(pictures looked at: {min(6, patience + 1)}\)"):
        made(video(tmp_path / "a.mp4", plain(6)), voice, tmp_path / "result.mp4")
    assert (tmp_path / "result.mp4").read_bytes() == b"earlier"
    assert {path.name for path in tmp_path.iterdir()} == {"a.mp4", "result.mp4"}


def test_a_box_outside_the_picture_is_no_face(stand_ins, written, voice, tmp_path):
    outside = np.array([[90, 10, 120, 40, 0.9]], np.float32)
    with pytest.raises(ValueError, match="No face"):
        lip_sync(stand_ins["colour"], lambda number: outside)(video(tmp_path / "a.mp4", plain(3)), voice)


def test_stages_run_ahead_of_each_other_but_not_far(stand_ins, voice, tmp_path, monkeypatch):
    decoded, distances = [0], []

    def endless(path, fps, longest):
        while True:
            decoded[0] += 1
            yield plain(1)[0].copy()

    class Slow:
        def __init__(self, *arguments):
            self.count = 0

        __enter__ = lambda self: self  # noqa: E731
        __exit__ = lambda self, *error: None  # noqa: E731

        def write(self, picture):
            self.count += 1
            distances.append(decoded[0] - self.count)

    monkeypatch.setattr(pipeline, "read_frames", endless)
    monkeypatch.setattr(pipeline, "Writer", Slow)
    path = sound(tmp_path / "long.wav", tone(24))
    made = lip_sync(stand_ins["whole"], batch=2)
    threads = threading.active_count()
    report = made(video(tmp_path / "a.mp4", plain(1)), path)
    assert report.frames == 600 and threading.active_count() <= threads
    requests = min(max(2, made._model.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")), 8)
    assert 2 < max(distances) <= 4 + 2 + 4 + 2 * (requests + 2) + pipeline.STEADY + 3


def test_what_is_made_ahead_comes_in_order_and_errors_come_through():
    made = []

    def items():
        for i in range(20):
            if i == 15:
                raise ValueError("fifteen")
            made.append(i)
            yield i

    with pytest.raises(ValueError, match="fifteen"):
        for i in ahead(items(), 3):
            assert len(made) <= i + 1 + 3
    assert made == list(range(15))


def test_leaving_early_ends_threads_and_closes_what_is_read():
    closed = threading.Event()

    def items():
        try:
            yield from range(1000)
        finally:
            closed.set()

    threads = threading.active_count()
    running = ahead(ahead(items(), 2), 2)
    assert next(running) == 0 and threading.active_count() == threads + 2
    running.close()
    assert closed.is_set() and threading.active_count() <= threads


@pytest.fixture(scope="module")
def real(generator_ir):
    return LipSync(generator_ir, weights.fetch("blazeface"), **F32)


@pytest.fixture(scope="module")
def portrait(tmp_path_factory):
    path = tmp_path_factory.mktemp("portrait") / "portrait.png"
    cv2.imwrite(str(path), hopper(201))
    return path


def test_a_photo_speaks(real, portrait, tmp_path):
    path, progress = sound(tmp_path / "voice.mp3", tone(1, 44_100, 2), 44_100, "libmp3lame"), []
    options = {"paste": "rectangle", "progress": lambda *done: progress.append(done)}
    report = real(portrait, path, tmp_path / "new" / "result.mp4", **options)
    assert progress == [(i + 1, 25) for i in range(25)]
    assert (report.frames, report.seconds, report.notes) == (25, 1.0, [])
    assert report.limit in report.busy and {"hear", "detect", "draw", "write"} <= report.busy.keys()
    result = list(read_frames(report.path, frame_rate(report.path)))
    assert len(result) == 25 and sound_seconds(report.path) == pytest.approx(1, abs=0.06)
    given = hopper(201)
    changed = [np.abs(frame[:201, : given.shape[1]].astype(int) - given).mean((1, 2)) for frame in result]
    assert min(rows[70:110].mean() for rows in changed) > 10 > 6 > max(rows[:30].mean() for rows in changed)


def test_result_follows_the_sound(real, portrait, written, tmp_path):
    for seconds in (0.5, 0.5):
        real(portrait, sound(tmp_path / "a.wav", tone(seconds)))
    real(portrait, sound(tmp_path / "b.wav", tone(0.5)[:, ::-1] * 0.5))
    first, again, other = np.split(np.stack(written).astype(int), [12, 24])
    assert (first == again).all() and np.abs(first - other).max() > 0


def test_silence_is_told(real, portrait, written, tmp_path):
    report = real(portrait, sound(tmp_path / "a.wav", np.zeros((1, RATE), np.float32)))
    assert report.notes == ["The sound is silent."] and report.frames == 25


def test_two_runs_at_once_do_not_meet(real, portrait, tmp_path):
    voices = [sound(tmp_path / f"{i}.wav", tone(0.4 + 0.2 * i)) for i in range(2)]
    reports = [None, None]

    def run(i):
        reports[i] = real(portrait, voices[i], tmp_path / f"{i}.mp4")

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [report.frames for report in reports] == [10, 15]


def test_bad_arguments_are_sentences(real, portrait, voice, tmp_path):
    for arguments, options, sentence in [
        ((tmp_path / "none.mp4", voice), {}, "none.mp4 is not there"),
        ((portrait, tmp_path / "none.wav"), {}, "none.wav is not there"),
        ((portrait, portrait), {}, "portrait.png holds no sound"),
        ((voice, voice), {}, "voice.wav holds no picture"),
        ((portrait, voice), {"fps": 0.5}, "1 to 120 frames a second, not 0.5"),
        ((portrait, voice), {"paste": "oval"}, "There is no paste='oval'. Choose one of feathered, rectangle"),
        ((portrait, voice, portrait), {}, "would replace .*portrait.png"),
        ((portrait, voice, tmp_path / "a.gif"), {}, r"call it a\.mp4"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            real(*arguments, **options)
    assert not list(tmp_path.iterdir())


def test_another_model_is_a_sentence(generator_ir, tmp_path):
    with pytest.raises(ValueError, match="none.xml is not there"):
        LipSync(tmp_path / "none.xml", weights.fetch("blazeface"))
    with pytest.raises(ValueError, match="is not Wav2Lip's generator"):
        LipSync(weights.fetch("blazeface"), weights.fetch("blazeface"))
    with pytest.raises(ValueError, match="is neither S3FD nor BlazeFace"):
        LipSync(generator_ir, generator_ir)


def test_int8_is_refused_on_arm(generator_ir, int8_ir, monkeypatch):
    monkeypatch.setattr(pipeline, "ON_ARM", True)
    for device in ("CPU", "AUTO"):
        with pytest.raises(ValueError, match=r"in INT8, which .* does not run on ARM processors\. Give the FP32"):
            LipSync(int8_ir, weights.fetch("blazeface"), device)
    LipSync(generator_ir, weights.fetch("blazeface"))
    monkeypatch.setattr(pipeline, "ON_ARM", False)
    LipSync(int8_ir, weights.fetch("blazeface"))


def test_it_runs_on_every_device(generator_ir, device):
    LipSync(generator_ir, weights.fetch("blazeface"), device)
