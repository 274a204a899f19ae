"""Small videos, pictures, sounds and generators made for the tests of this notebook."""

from fractions import Fraction
from pathlib import Path

import av
import cv2
import matplotlib
import numpy as np
import openvino as ov
import openvino.opset13 as ops

RATE = 16_000


def hopper(height: int = 300) -> np.ndarray:
    """Grace Hopper's portrait (public domain, out of matplotlib), scaled, BGR: one face, seen from the front."""
    picture = cv2.imread(str(Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"))
    return cv2.resize(picture, None, fx=height / 600, fy=height / 600, interpolation=cv2.INTER_AREA)


def plain(count: int, height: int = 64, width: int = 80) -> list[np.ndarray]:
    """Pictures of one colour each, so that their order can be read off them: blue is 10 times the number."""
    return [np.full((height, width, 3), (10 * i, 100, 200), np.uint8) for i in range(count)]


def video(path: Path, pictures: list[np.ndarray], fps: Fraction | int = 25, times: list[int] | None = None) -> Path:
    """A video without loss. times: when each picture begins, in milliseconds, for a rate that varies."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264rgb", fps, {"qp": "0", "preset": "ultrafast"})
        stream.height, stream.width, stream.pix_fmt = *pictures[0].shape[:2], "bgr24"
        if times:
            stream.codec_context.time_base = Fraction(1, 1000)
        for i, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="bgr24")
            frame.pts, frame.time_base = (times[i], Fraction(1, 1000)) if times else (i, 1 / Fraction(fps))
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def tone(seconds: float, rate: int = RATE, channels: int = 1) -> np.ndarray:
    """A tone that rises and swells, [channels, n] float32."""
    t = np.arange(round(seconds * rate)) / rate
    wave = 0.4 * np.sin(2 * np.pi * (200 + 150 * t) * t) * (0.55 + 0.45 * np.sin(2 * np.pi * 3 * t))
    return np.tile(wave.astype(np.float32), (channels, 1))


def sound(path: Path, samples: np.ndarray, rate: int = RATE, codec: str = "pcm_f32le") -> Path:
    """A sound file of samples [channels, n]."""
    with av.open(str(path), "w") as container:
        layout = {1: "mono", 2: "stereo", 6: "5.1"}[len(samples)]
        stream = container.add_stream(codec, rate, layout=layout)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples), format="fltp", layout=layout)
        frame.sample_rate, frame.pts = rate, 0
        for resampled in av.AudioResampler(stream.format, layout, rate).resample(frame):
            container.mux(stream.encode(resampled))
        container.mux(stream.encode(None))
    return path


def generator(path: Path, draw) -> Path:
    """A stand-in for the generator that computes draw(audio, face), an OpenVINO node, for any batch."""
    audio = ops.parameter([-1, 1, 80, 16], np.float32, "audio")
    face = ops.parameter([-1, 6, 96, 96], np.float32, "face")
    audio.output(0).get_tensor().set_names({"audio"})
    face.output(0).get_tensor().set_names({"face"})
    ov.save_model(ov.Model([draw(audio, face)], [audio, face]), path, compress_to_fp16=False)
    return path


def channels(face, first: int):
    """Three channels of the generator's face input: 0 masked, 3 whole."""
    return ops.slice(face, [first], [first + 3], [1], [1])
