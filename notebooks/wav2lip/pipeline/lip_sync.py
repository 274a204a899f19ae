"""Lips that follow a sound: `LipSync(wav2lip_path, face_detection_path)(face, audio, "result.mp4")`.

The folder needs openvino, numpy, opencv-python-headless and av. To use it elsewhere, copy the folder `pipeline`.
"""

from __future__ import annotations

import platform
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from itertools import chain, islice, repeat
from pathlib import Path
from time import perf_counter

import cv2
import numpy as np
import openvino as ov

from .detection import FaceDetector, compiled, overlap
from .media import USUAL_FPS, Writer, frame_rate, read_frames, read_sound, sound_seconds

ON_ARM = platform.machine().lower() in ("aarch64", "arm64")

SIDE = 96  # pixels of a face as the generator sees it
FEATHER = 14  # pixels of that face over which the pasted lower half fades out at its edges
COLOUR_REACH = 12  # pixels of that face over which the colour at the edges is averaged
PADS = (0, 10, 0, 0)  # pixels added above, below, left and right of a detected face, to include the chin
SAME = 0.3  # least overlap with the face of the frame before
PATIENCE = 250  # frames without a face at the beginning before the search ends
STEADY = 5  # frames over which the box of a face is averaged

SAMPLE_RATE = 16_000  # Hz
FFT, HOP = 800, 200  # samples
BANDS = 80  # of the mel spectrogram
MEL_RATE = SAMPLE_RATE / HOP  # mel frames a second
WINDOW = 16  # mel frames, 0.2 seconds, that each picture is drawn from


@dataclass
class Report:
    """The result of a run. Its stages overlap: the others waited for the one that was busy the longest."""

    path: Path
    fps: Fraction
    frames: int = 0
    elapsed: float = 0.0  # seconds that the run took
    busy: dict[str, float] = field(default_factory=dict)  # seconds that each stage worked
    notes: list[str] = field(default_factory=list)  # for the viewer: frames without a face, silence ...

    @property
    def seconds(self) -> float:
        """The length of the video."""
        return float(self.frames / self.fps)

    @property
    def limit(self) -> str:
        """The slowest stage, for which the others waited: read, hear, detect, draw or write."""
        return max(self.busy, key=self.busy.get)

    @contextmanager
    def during(self, stage: str) -> Iterator[None]:
        """Add the time that the block takes to a stage."""
        begin = perf_counter()
        yield
        self.busy[stage] = self.busy.get(stage, 0.0) + perf_counter() - begin

    def timed(self, stage: str, items: Iterator) -> Iterator:
        """The items; the time to produce each is added to a stage."""
        end = object()
        while True:
            with self.during(stage):
                item = next(items, end)
            if item is end:
                return
            yield item


class LipSync:
    """Redraws the lips of a face so that they follow a sound.

    wav2lip_path: the generator's IR, inputs `audio` [B, 1, 80, 16] and `face` [B, 6, 96, 96], output [B, 3, 96, 96].
    face_detection_path: see FaceDetector. batch: faces drawn at once. properties: OpenVINO's, of the generator; by
    default the device chooses its arithmetic (INFERENCE_PRECISION_HINT="f32" is exact). Threads may share an object.
    Raises ValueError for other files, and on ARM processors for INT8.
    """

    def __init__(self, wav2lip_path, face_detection_path, device: str = "CPU", batch: int = 8, **properties):
        if not Path(wav2lip_path).is_file():
            raise ValueError(f"The generator {wav2lip_path} is not there. Give its .xml file.")
        try:
            model = ov.Core().read_model(wav2lip_path)
            model.reshape({"audio": [batch, 1, BANDS, WINDOW], "face": [batch, 6, SIDE, SIDE]})
        except RuntimeError as error:
            raise ValueError(f"{wav2lip_path} is not Wav2Lip's generator. Give the .xml file made of it.") from error
        quantised = any(node.get_type_name() == "FakeQuantize" for node in model.get_ops())
        if quantised and ON_ARM and device in ("CPU", "AUTO"):  # AUTO has nothing else there
            raise ValueError(
                f"{wav2lip_path} is in INT8, which OpenVINO 2026.4 does not run on ARM processors. "
                "Give the FP32 or FP16 file."
            )
        self.detector = FaceDetector(face_detection_path, device)
        self.batch = batch
        self._model = compiled(model, device, {"PERFORMANCE_HINT": "THROUGHPUT"} | properties)

    def __call__(
        self,
        face: str | Path,
        audio: str | Path,
        out_path: str | Path = "results/result_voice.mp4",
        *,
        static: bool = False,
        fps: float | Fraction | None = None,
        pads: tuple[int, int, int, int] = PADS,
        paste: str = "feathered",
        longest: int | None = None,
        watermark: bool = True,
        progress: Callable[[int, int | None], None] | None = None,
    ) -> Report:
        """Write a video, as long as the sound, in which the lips of a face in a video or picture follow the sound.

        face, audio: files in any format that FFmpeg reads. The video repeats when the sound is longer. Of several
        faces the largest is chosen and tracked. Frames without a face use the position of the last one.
        static: show only the first frame. fps: frames a second of the result, by default those of the video, or 25 for
        a picture. pads: pixels to add above, below, left and right of a detected face. paste: "feathered" puts the
        lower half of the drawn face into the frame (`paste_lower_half`), "rectangle" the whole face, as the authors do
        (`paste_rectangle`). longest: limit of the sides in pixels, to which larger pictures are scaled down. watermark:
        mark the video as generated, in a corner of the picture and in the file. progress: called with the number of
        finished frames and of all frames, if known.

        Raises ValueError for files that cannot be read, that show no face, or that have no sound or too little, and for
        an unknown `paste`. The file `out_path` then stays unchanged.
        """
        if paste not in PASTES:
            raise ValueError(f"There is no paste={paste!r}. Choose one of {', '.join(PASTES)}.")
        if Path(out_path).resolve() in (Path(face).resolve(), Path(audio).resolve()):
            raise ValueError(f"The result would replace {out_path}, which it is made of. Give it another name.")
        own_fps = frame_rate(face)
        fps = _rate(fps or own_fps or USUAL_FPS)
        length = sound_seconds(audio)
        total = round(length * fps) if length else None
        report, begin = Report(Path(out_path), fps), perf_counter()

        def pictures() -> Iterator[np.ndarray]:
            decoded = read_frames(face, fps, longest)
            if static or own_fps is None:
                return ahead(repeat(next(decoded)), 4)
            return ahead(report.timed("read", decoded), 4)

        with Writer(out_path, fps, audio, watermark) as writer, ExitStack() as stages:

            def stage(items: Iterator, count: int) -> Iterator:
                return stages.enter_context(closing(ahead(items, count)))

            sounds = stage(report.timed("hear", self._read_mel(audio, fps, report)), 4 * self.batch)
            tracked = stage(self._track(pictures, sounds, pads, report), self.batch)
            drawn = stage(self._draw(tracked, report), 4)
            for (picture, _, box), lips in drawn:
                with report.during("write"):
                    writer.write(picture if box is None else PASTES[paste](picture, lips, box))
                report.frames += 1
                if progress:
                    progress(report.frames, total)
        report.elapsed = perf_counter() - begin
        return report

    def _read_mel(self, audio: str | Path, fps: Fraction, report: Report) -> Iterator[np.ndarray]:
        """The mel window [80, 16] of each frame."""
        silent = True

        def samples() -> Iterator[np.ndarray]:
            nonlocal silent
            for block in read_sound(audio, SAMPLE_RATE):
                silent = silent and not block.any()
                yield block

        yield from mel_windows(mel_blocks(samples()), fps)
        if silent:
            report.notes.append("The sound is silent.")

    def _track(self, pictures: Callable, sounds: Iterator, pads, report: Report) -> Iterator[tuple]:
        """(picture, mel window, box of the face or None) of each frame; the pictures repeat when they end."""
        boxes = []  # of the frames so far, for when the pictures repeat
        for (picture, sound), box in smoothed(self._find(zip(pictures(), sounds, strict=False), pads, report)):
            boxes.append(box)
            yield picture, sound, box
        while (sound := next(sounds, None)) is not None:
            yield from zip(pictures(), chain([sound], sounds), boxes, strict=False)

    def _find(self, frames: Iterable[tuple], pads, report: Report) -> Iterator[tuple]:
        """((picture, mel window), box or None) of each frame; a repeated picture is searched only once."""
        searched = face = None  # the last picture that was searched, the last face
        counts = Counter()
        for number, (picture, sound) in enumerate(frames):
            if picture is not searched:
                with report.during("detect"):
                    faces = self.detector(picture)
                faces = faces[[padded(candidate, pads, picture) is not None for candidate in faces]]
                counts["looked"] += 1
                counts["crowded"] += len(faces) > 1
                counts["missed" if face is not None else "early"] += not len(faces)
                face = choose(faces, face) if len(faces) else face
                searched = picture
            if face is None and number >= PATIENCE:
                break
            yield (picture, sound), None if face is None else padded(face, pads, picture)
        if face is None:
            raise ValueError(
                f"No face was found (pictures looked at: {counts['looked']}). Give a video or picture that shows one, "
                "large and from the front."
            )
        messages = {
            "crowded": "show several faces: the largest was taken and followed",
            "missed": "show no face: the last place of one was used",
            "early": "come before the first face: they stay as they are",
        }
        report.notes += [
            f"{counts[key]} of {counts['looked']} frames {message}." for key, message in messages.items() if counts[key]
        ]

    def _draw(self, frames: Iterator[tuple], report: Report) -> Iterator[tuple]:
        """(frame, face [96, 96, 3] to paste) of each (picture, mel window, box), drawn by requests that overlap."""
        optimal = self._model.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
        idle = [self._model.create_infer_request() for _ in range(min(max(2, optimal), 8))]
        running = deque()

        def finish() -> Iterator[tuple]:
            batch, request = running.popleft()
            with report.during("draw"):
                request.wait()
                faces = (request.get_output_tensor().data * 255).astype(np.uint8)  # cut off, not rounded
            idle.append(request)
            yield from zip(batch, faces.transpose(0, 2, 3, 1), strict=False)  # the last batch may not be full

        while batch := list(islice(frames, self.batch)):
            if not idle:
                yield from finish()
            with report.during("draw"):
                audio = np.zeros(self._model.input("audio").shape, np.float32)  # [batch, 1, 80, 16]
                face = np.zeros(self._model.input("face").shape, np.float32)  # [batch, 6, 96, 96]
                for i, (picture, sound, box) in enumerate(batch):
                    if box is not None:
                        audio[i, 0], face[i] = sound, generator_face(cut(picture, box))
                idle[-1].start_async({"audio": audio, "face": face})
            running.append((batch, idle.pop()))
        while running:
            yield from finish()


def ahead(items: Iterable, count: int) -> Iterator:
    """The items, produced by a separate thread at most `count` items in advance."""
    items, end = iter(items), object()
    with ThreadPoolExecutor(1) as thread:
        waiting = deque(thread.submit(next, items, end) for _ in range(count))
        try:
            while (item := waiting.popleft().result()) is not end:
                waiting.append(thread.submit(next, items, end))
                yield item
        finally:
            thread.shutdown(cancel_futures=True)
            if hasattr(items, "close"):
                items.close()  # now, not at garbage collection, so that files are closed and threads end


def choose(faces: np.ndarray, last: np.ndarray | None) -> np.ndarray:
    """The face [5] of `faces` [n, 5] that overlaps the last one most, or else the largest."""
    if last is not None and (overlaps := overlap(last, faces)).max() > SAME:
        return faces[overlaps.argmax()]
    return faces[np.prod(faces[:, 2:4] - faces[:, :2], 1).argmax()]


def padded(face: np.ndarray, pads: tuple[int, int, int, int], picture: np.ndarray) -> tuple[int, int, int, int] | None:
    """A face with its padding, cut to the picture: left, top, right, bottom in whole pixels. None when empty."""
    left, top, right, bottom = (max(0, int(x)) for x in face[:4])
    above, below, before, after = pads
    height, width = picture.shape[:2]
    box = max(0, left - before), max(0, top - above), min(width, right + after), min(height, bottom + below)
    return box if box[0] < box[2] and box[1] < box[3] else None


def smoothed(boxed: Iterable[tuple]) -> Iterator[tuple]:
    """Each (item, box) with the mean of five boxes, its own and the next four; an item without a box stays unchanged.

    The last four use the mean of the last five boxes. The earlier ones of these are means already, because the
    authors smooth in place.
    """
    last, fresh = deque(maxlen=STEADY), 0  # the last [item, box], and how many of them are not smoothed yet

    def smooth(entry: list, window: Iterable[list]) -> tuple:
        entry[1] = tuple(np.mean([box for _, box in window], 0).astype(int).tolist())
        return tuple(entry)

    for item, box in boxed:
        if box is None:
            yield item, box
            continue
        last.append([item, box])
        fresh += 1
        if len(last) == STEADY:
            yield smooth(last[0], last)
            fresh -= 1
    last = list(last)
    for entry in last[len(last) - fresh :]:
        yield smooth(entry, last[len(last) - STEADY :])


def cut(picture: np.ndarray, box: tuple[int, int, int, int]) -> np.ndarray:
    """The face in a box (left, top, right, bottom), [96, 96, 3]."""
    left, top, right, bottom = box
    return cv2.resize(picture[top:bottom, left:right], (SIDE, SIDE))


def paste_lower_half(picture: np.ndarray, face: np.ndarray, box: tuple[int, int, int, int]) -> np.ndarray:
    """A copy of the picture with the lower half of a face [96, 96, 3], scaled into the box.

    The half fades out over FEATHER pixels at its edges. Before that its colours are shifted by the difference that the
    picture shows at the upper and lateral edges, so that cheeks continue without a step. Everything above the middle of
    the box stays unchanged.
    """
    left, top, right, bottom = box
    size = right - left, bottom - top
    share, edges, near = _feather()
    difference = (cut(picture, box) - face.astype(np.float32)) * edges[..., None]
    colour = cv2.GaussianBlur(difference, (0, 0), COLOUR_REACH) / near[..., None]
    drawn = np.clip(face + colour + 0.5, 0, 255).astype(np.uint8)  # [96, 96, 3]
    lower = slice((bottom - top) // 2, None)
    drawn, share = cv2.resize(drawn, size)[lower], cv2.resize(share, size)[lower]  # [h, w, 3], [h, w]
    picture = picture.copy()
    region = picture[top:bottom, left:right][lower]
    region[:] = cv2.blendLinear(np.ascontiguousarray(region), drawn, 1 - share, share)
    return picture


@cache
def _feather() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Maps [96, 96]: the share of the drawn face, the weight of a pixel for the colours, and that weight's average."""
    pixels = np.arange(SIDE) + 0.5
    down = _fade(pixels - SIDE / 2) * _fade(SIDE - pixels)
    across = _fade(pixels) * _fade(SIDE - pixels)
    share = (down[:, None] * across).astype(np.float32)
    edges = share * (1 - share)
    edges[3 * SIDE // 4 :] = 0  # the chin moves there
    return share, edges, cv2.GaussianBlur(edges, (0, 0), COLOUR_REACH) + 1e-4


def _fade(distance: np.ndarray) -> np.ndarray:
    """0 at a distance of 0 pixels or less, 1 from FEATHER pixels on, smooth between them."""
    share = np.clip(distance / FEATHER, 0, 1)
    return share**2 * (3 - 2 * share)


def paste_rectangle(picture: np.ndarray, face: np.ndarray, box: tuple[int, int, int, int]) -> np.ndarray:
    """A copy of the picture with the whole face scaled into the box, as the authors do."""
    left, top, right, bottom = box
    picture = picture.copy()
    picture[top:bottom, left:right] = cv2.resize(face, (right - left, bottom - top))
    return picture


PASTES = {"feathered": paste_lower_half, "rectangle": paste_rectangle}


def generator_face(crop: np.ndarray) -> np.ndarray:
    """The generator's input [6, 96, 96] float32 in 0..1 for a face [96, 96, 3]: with a black lower half, then whole."""
    masked = crop.copy()
    masked[SIDE // 2 :] = 0
    return np.concatenate([masked, crop], 2).transpose(2, 0, 1) / np.float32(255)


def _rate(fps: float | Fraction) -> Fraction:
    if not 1 <= fps <= 120:
        raise ValueError(f"A video has 1 to 120 frames a second, not {fps}.")
    return Fraction(fps).limit_denominator(1001)


def mel_windows(blocks: Iterable[np.ndarray], fps: float | Fraction) -> Iterator[np.ndarray]:
    """The window of 16 mel frames [80, 16] of each picture, from blocks [80, k] of a spectrogram.

    The windows begin at `chunk_starts`. The last window repeats until the pictures last as long as the sound (the
    authors' results end up to 0.2 seconds early). Raises ValueError for fewer than 16 mel frames.
    """
    fps = float(fps)
    mel = np.empty((BANDS, 0), np.float32)  # the part of the spectrogram that is still needed
    first = 0  # index of its first mel frame
    count = 0  # windows so far
    for block in blocks:
        mel = np.concatenate([mel, block], 1)
        while (start := int(count * MEL_RATE / fps) - first) + WINDOW <= mel.shape[1]:
            yield mel[:, start : start + WINDOW]
            count += 1
        done = min(start, mel.shape[1] - WINDOW)
        if done > 0:
            mel, first = mel[:, done:], first + done
    length = first + mel.shape[1]
    _check_length(length)
    for _ in range(max(1, round((length - 1) * fps / MEL_RATE) - count)):
        yield mel[:, -WINDOW:]


def chunk_starts(length: int, fps: float) -> list[int]:
    """The first mel frame of each picture's window of 16; the last window is at the end of `length` mel frames.

    Raises ValueError for fewer than 16.
    """
    _check_length(length)
    starts = [0]
    while starts[-1] + WINDOW <= length:
        starts.append(int(len(starts) * MEL_RATE / fps))
    return starts[:-1] + [length - WINDOW]


def _check_length(length: int) -> None:
    if length < WINDOW:
        raise ValueError(f"The sound has {length} mel frames, one frame needs {WINDOW}: give at least 0.2 seconds.")


def melspectrogram(samples: np.ndarray) -> np.ndarray:
    """Wav2Lip's mel spectrogram [80, 1 + n // 200], float32 in -4..4, of 16 kHz mono samples [n]."""
    return np.concatenate([*mel_blocks([samples]), np.empty((BANDS, 0), np.float32)], 1)


def mel_blocks(blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """The same spectrogram in pieces [80, k] from blocks of samples, so that memory does not grow with the sound."""
    signal = np.empty(0)  # samples whose mel frames are not computed yet
    previous = 0.0  # the last sample of the block before
    started = False
    for block in blocks:
        if not len(block):
            continue
        block = block.astype(np.float64)  # in float32 all blocks but the first would be off by 1e-5
        signal = np.concatenate([signal, block - 0.97 * np.concatenate([[previous], block[:-1]])])  # pre-emphasis
        previous = block[-1]
        if not started and len(signal) > FFT // 2:
            signal = np.concatenate([signal[FFT // 2 : 0 : -1], signal])  # mirrored, as at the end below
            started = True
        if started and len(signal) >= FFT:
            mel = _mel(signal)
            signal = signal[HOP * mel.shape[1] :]
            yield mel
    if started:
        yield _mel(np.concatenate([signal, signal[-2 : -FFT // 2 - 2 : -1]]))


def _mel(signal: np.ndarray) -> np.ndarray:
    """Mel frames [80, k] in -4..4 of a signal [n] with pre-emphasis."""
    frames = np.lib.stride_tricks.sliding_window_view(signal, FFT)[::HOP]  # [k, 800]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FFT) / FFT)  # Hann, periodic
    mel = _filters() @ np.abs(np.fft.rfft(frames * window)).T  # [80, k]
    decibels = 20 * np.log10(np.maximum(1e-5, mel)) - 20
    return np.clip(8 * (decibels + 100) / 100 - 4, -4, 4).astype(np.float32)


@cache
def _filters() -> np.ndarray:
    """Weights [80, 401] of the FFT's bins in each mel band, 55 to 7600 Hz, Slaney's scale, each of the same area."""

    def mel(hertz):
        return np.where(hertz < 1000, hertz * 3 / 200, 15 + 27 * np.log(np.maximum(hertz, 1000) / 1000) / np.log(6.4))

    def hertz(mel):
        return np.where(mel < 15, mel * 200 / 3, 1000 * 6.4 ** ((np.maximum(mel, 15) - 15) / 27))

    edges = hertz(np.linspace(mel(55.0), mel(7600.0), BANDS + 2))[:, None]
    bins = np.arange(FFT // 2 + 1) * SAMPLE_RATE / FFT
    slopes = (bins - edges) / np.diff(edges, axis=0, append=np.inf)
    rising, falling = slopes[:-2], 1 - slopes[1:-1]
    return np.maximum(0, np.minimum(rising, falling)) * 2 / (edges[2:] - edges[:-2])
