"""Reads pictures and sound from files and writes a video, in pieces, so that memory does not grow with the length.

This module needs av (FFmpeg), numpy and OpenCV. Pictures are [H, W, 3] uint8, BGR, as in OpenCV.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from itertools import chain
from pathlib import Path

import av
import cv2
import numpy as np
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc

USUAL_FPS = Fraction(25)  # frames a second of stills, and of files with an implausible rate
LABEL = "AI-generated"
COMMENT = "AI-generated: the lips in this video follow its sound by Wav2Lip, they are not a recording."


def frame_rate(path: str | Path) -> Fraction | None:
    """Frames a second of a video, None for a still picture. Raises ValueError for a file without pictures."""
    with _open(path, "video") as container:
        if container.format.name == "image2" or container.format.name.endswith("_pipe"):
            return None
        stream = container.streams.video[0]
        rates = stream.guessed_rate, stream.average_rate
        return next((rate for rate in rates if rate and 1 <= rate <= 120), USUAL_FPS)


def read_frames(path: str | Path, fps: Fraction, longest: int | None = None) -> Iterator[np.ndarray]:
    """The frames of a video, or the one of a still picture, upright; transparent areas become white.

    The rate is constant: frames are repeated or dropped according to their times. Frames are scaled down to sides of
    at most `longest` pixels, and to the size of the first one if their size changes. Raises ValueError when nothing, or
    only a part, can be decoded.
    """
    with _open(path, "video") as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        picture, size, begin, slot = None, None, None, 0
        for frame in container.decode(stream):
            begin = frame.time if begin is None else begin
            due = slot + (picture is not None) if frame.time is None else int((frame.time - begin) * fps + 0.5)
            while slot < due:
                yield picture
                slot += 1
            upright = _upright(frame)
            if size is None:
                scale = min(1, longest / max(upright.shape)) if longest else 1
                size = tuple(max(1, round(scale * side)) for side in upright.shape[1::-1])
            picture = upright
            if upright.shape[1::-1] != size:
                picture = cv2.resize(upright, size, interpolation=cv2.INTER_AREA)
        if picture is None:
            raise ValueError(f"{path} holds no picture that can be decoded. Give another file.")
        yield picture


def _upright(frame: av.VideoFrame) -> np.ndarray:
    """The picture of a decoded frame, rotated as its file says, on white."""
    if frame.format.name == "pal8" or any(component.is_alpha for component in frame.format.components):
        *colours, alpha = np.moveaxis(frame.to_ndarray(format="bgra").astype(np.float32), -1, 0)
        picture = (np.stack(colours, -1) * alpha[..., None] / 255 + 255 - alpha[..., None]).round().astype(np.uint8)
    else:
        picture = frame.to_ndarray(format="bgr24")
    return np.ascontiguousarray(np.rot90(picture, round(frame.rotation / 90)))


def sound_seconds(path: str | Path) -> float | None:
    """The length of a file's sound by its header, None if that has none. Raises ValueError without sound."""
    with _open(path, "audio") as container:
        stream = container.streams.audio[0]
        if stream.duration:
            return float(stream.duration * stream.time_base)
        return container.duration / av.time_base if container.duration else None


def read_sound(path: str | Path, rate: int) -> Iterator[np.ndarray]:
    """The sound of any file as blocks [n] float32 of about a second, at `rate` Hz, the mean of all channels.

    Raises ValueError for a file without sound, sound that cannot be decoded, and values that are no numbers.
    """
    pieces = []
    for frame in _decoded_sound(path, rate):
        pieces.append(frame.to_ndarray().mean(0))
        if sum(map(len, pieces)) >= rate:
            yield _check_finite(np.concatenate(pieces), path)
            pieces = []
    if pieces:
        yield _check_finite(np.concatenate(pieces), path)


def _check_finite(samples: np.ndarray, path: str | Path) -> np.ndarray:
    if not np.isfinite(samples).all():
        raise ValueError(f"The sound of {path} holds values that are no numbers. Export it again.")
    return samples


def _decoded_sound(path: str | Path, rate: int, layout: str | None = None) -> Iterator[av.AudioFrame]:
    """Decoded sound as planes of floats, timed by its samples; mixing to a layout does not raise its level."""
    with _open(path, "audio") as container:
        resampler = av.AudioResampler("fltp", layout, rate, options={"rematrix_maxval": "1"})
        samples = 0  # so far
        for decoded in chain(container.decode(audio=0), [None]):  # None flushes the resampler
            for frame in resampler.resample(decoded):
                frame.pts, frame.time_base = samples, Fraction(1, rate)
                samples += frame.samples
                yield frame


@contextmanager
def _open(path: str | Path, kind: str) -> Iterator[av.container.InputContainer]:
    """A media file that has a stream of a kind ("video" or "audio"). FFmpeg's errors become ValueErrors."""
    what = {"video": "picture", "audio": "sound"}[kind]
    if not Path(path).is_file():
        raise ValueError(f"{path} is not there. Correct its name.")
    try:
        with av.open(f"file:{path}") as container:  # so that a colon in the name is no protocol
            if not getattr(container.streams, kind):
                raise ValueError(f"{path} holds no {what}. Give a file that does.")
            yield container
    except av.FFmpegError as error:
        raise ValueError(
            f"{path} cannot be read as {what} ({error.strerror}): it is damaged or of an unknown format. Give another."
        ) from error


class Writer:
    """An MP4 video (H.264) with the sound of another file (AAC); use it in a `with` statement.

    The file is replaced when the block ends without an exception; otherwise it stays unchanged. label: mark the video
    as generated, in a corner of the picture and in the file's comment. Raises ValueError for a name that does not end
    in .mp4.
    """

    def __init__(self, path: str | Path, fps: Fraction, sound: str | Path, label: bool = True):
        self.path = Path(path)
        self.fps = fps
        self.sound = sound
        self.label = label
        if self.path.suffix.lower() != ".mp4":
            raise ValueError(f"The result is an MP4 video: call it {self.path.stem}.mp4, not {self.path.name}.")
        self.partial = self.path.with_name(f".{self.path.stem}.partial.mp4")
        self.size = None  # width and height, both even, as H.264 requires
        self.count = 0  # frames so far
        self._sound_end = 0  # seconds of sound so far

    def __enter__(self) -> Writer:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._container = av.open(f"file:{self.partial}", "w", options={"movflags": "faststart"})
        if self.label:
            self._container.metadata["comment"] = COMMENT
        return self

    def write(self, picture: np.ndarray) -> None:
        """Add a frame, and the sound up to its end. All frames have the size of the first."""
        height, width = picture.shape[:2]
        if not self.size:
            self._begin(width + width % 2, height + height % 2)
        right, below = self.size[0] - width, self.size[1] - height
        picture = cv2.copyMakeBorder(picture, 0, below, 0, right, cv2.BORDER_REPLICATE)
        if self.label:
            _draw_label(picture)
        frame = av.VideoFrame.from_ndarray(picture, format="bgr24").reformat(
            format="yuv420p",
            dst_colorspace=Colorspace.ITU709,
            src_color_range=ColorRange.JPEG,
            dst_color_range=ColorRange.MPEG,
        )
        frame.pts, self.count = self.count, self.count + 1
        self._container.mux(self._video.encode(frame))
        self._write_sound(self.count / self.fps)

    def _begin(self, width: int, height: int) -> None:
        self.size = width, height
        self._video = self._container.add_stream("libx264", self.fps, {"preset": "veryfast", "crf": "18"})
        self._video.width, self._video.height, self._video.pix_fmt = width, height, "yuv420p"
        self._video.codec_context.time_base = 1 / self.fps
        # stored in the file, so that every player converts the colours back in the same way
        self._video.codec_context.colorspace = Colorspace.ITU709
        self._video.codec_context.color_range = ColorRange.MPEG
        self._video.codec_context.color_primaries = ColorPrimaries.BT709
        self._video.codec_context.color_trc = ColorTrc.BT709
        rate, layout = _aac_format(self.sound)
        self._audio = self._container.add_stream("aac", rate, layout=layout)
        self._sound = _decoded_sound(self.sound, rate, layout)

    def _write_sound(self, until: Fraction | float) -> None:
        """Write sound up to a time in seconds: interleaved with pictures, neither has to wait in memory."""
        while self._sound_end < until and (frame := next(self._sound, None)):
            self._sound_end = (frame.pts + frame.samples) * frame.time_base
            self._container.mux(self._audio.encode(frame))

    def __exit__(self, kind, error, trace) -> None:
        try:
            if kind is None and self.size:
                self._write_sound(math.inf)
                self._container.mux(self._audio.encode(None))
                self._container.mux(self._video.encode(None))
            self._container.close()
            if kind is None and self.size:
                os.replace(self.partial, self.path)
        finally:
            self.partial.unlink(missing_ok=True)


def _aac_format(path: str | Path) -> tuple[int, str]:
    """The sample rate and layout nearest to a file's own that AAC players know."""
    with _open(path, "audio") as container:
        own = container.streams.audio[0]
        rate = min((48_000, 44_100, 32_000, 24_000, 22_050, 16_000), key=lambda rate: abs(rate - own.rate))
        return rate, "mono" if own.channels == 1 else "stereo"


def _draw_label(picture: np.ndarray) -> None:
    """Write LABEL into the lower left corner, white with a dark rim."""
    height, width = picture.shape[:2]
    scale = max(0.35, min(height, width) / 900)
    left, bottom, rim = round(10 * scale), height - round(10 * scale), max(1, round(scale))
    shifts = [(x, y) for x in (-rim, 0, rim) for y in (-rim, 0, rim)]
    for colour, offsets in (((0, 0, 0), shifts), ((255, 255, 255), [(0, 0)])):
        for x, y in offsets:
            origin = (left + x, bottom + y)
            cv2.putText(picture, LABEL, origin, cv2.FONT_HERSHEY_SIMPLEX, scale, colour, rim, cv2.LINE_AA)
