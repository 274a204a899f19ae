"""Questions about pictures: `VisionChat(folder).ask("photo.jpg", "What is on the table?")`.

Needs openvino, openvino-genai (for the tokenizer), numpy and Pillow. To use it elsewhere copy this file and slicing.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from time import perf_counter

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import openvino_genai as genai
from PIL import Image, ImageOps

from .slicing import Plan, batch, cut, normalised, placeholder, plan, resized_positions, sincos_positions

PARTS = ("vision_embeddings", "resampler", "text_embeddings", "language")
UNKNOWN = "<unk>"  # stands for one embedding of a picture
MARKS = (UNKNOWN, "<image>", "</image>", "<slice>", "</slice>", "<image_id>", "</image_id>")
MOST_PIXELS = 80_000_000
MOST_RATIO = 100  # of the longer side to the shorter one: beyond it, patches get too many
Picture = Image.Image | str | Path


@dataclass(frozen=True)
class Turn:
    """A question, the RGB pictures that came with it, whether they were sliced, and the answer."""

    question: str
    answer: str
    images: tuple[Image.Image, ...] = ()
    slicing: bool = True


@dataclass
class Figures:
    """What an answer took. Seconds count from the question; tokens a second are those after the first."""

    image_s: float = 0.0  # slicing and encoding the pictures
    first_token_s: float = 0.0
    seconds: float = 0.0
    slices: int = 0  # pieces of pictures encoded, overviews included
    kept: int = 0  # tokens of the conversation that were in the KV cache already
    read: int = 0  # tokens and picture embeddings read anew
    generated: int = 0
    ended: str = ""  # "stop": all was said; "length": max_new_tokens or the context is full; "stopped": by `stream`
    notes: list[str] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float | None:
        """None for an answer of less than two tokens."""
        spent = self.seconds - self.first_token_s
        return (self.generated - 1) / spent if self.generated > 1 and spent > 0 else None


class VisionChat:
    """MiniCPM-V 2.0 or 2.6 on OpenVINO, answering greedily.

    folder: the IR folder that `convert.py` writes. device: OpenVINO's name. properties: OpenVINO's, for all sub-models;
    by default the device chooses its arithmetic (INFERENCE_PRECISION_HINT="f32", KV_CACHE_PRECISION="f32" are exact).
    Threads may share it: they wait for each other. Raises ValueError for a folder that is not one of these.
    """

    def __init__(self, folder: str | Path, device: str = "CPU", **properties) -> None:
        folder = Path(folder)
        needed = [f"openvino_{part}_model.xml" for part in PARTS] + ["openvino_tokenizer.xml", "config.json"]
        if missing := [name for name in needed if not (folder / name).is_file()]:
            raise ValueError(f"{folder} has no {', '.join(missing)}. Give the folder that the conversion wrote.")
        self.config, self._settings, stops = (
            json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
            for name in ("config", "preprocessor_config", "generation_config")
        )
        self.version = float(self.config.get("version", 2.0))
        self._queries = self.config.get("query_num", 64)
        self._patch = self._settings["patch_size"]
        self.context = self.config.get("max_position_embeddings", 4096)  # tokens that a conversation may have
        stop = stops["eos_token_id"]
        self._stops = set(stop if isinstance(stop, list) else [stop])
        self._table = None if self.version >= 2.6 else np.load(folder / "vision_positions.npy", allow_pickle=False)
        self.tokenizer = genai.Tokenizer(folder)
        self._unknown = self._ids(UNKNOWN)[0]

        core = ov.Core()
        models = {part: core.read_model(folder / f"openvino_{part}_model.xml") for part in PARTS}
        only_last(models["language"])
        requests = {
            part: core.compile_model(model, device, properties).create_infer_request() for part, model in models.items()
        }
        self._vision, self._resampler, self._text, self._language = requests.values()
        self.figures = Figures()
        self._lock, self._turns, self._said, self._pending, self._past = Lock(), None, "", [], 0

    def plan(self, image: Picture, slicing: bool = True) -> Plan:
        """How a picture is sliced; raises ValueError for one that cannot be read."""
        return self._plan(open_picture(image)[0], slicing)

    def ask(
        self,
        images: Picture | Sequence[Picture] | None,
        question: str,
        history: list[Turn] | None = None,
        max_new_tokens: int = 512,
        stream: Callable[[str], object] | None = None,
        slicing: bool = True,
    ) -> str:
        """The answer to a question about pictures (files or PIL images), or about what was said before.

        history: earlier turns, a list of yours to which this one is added; as long as one conversation goes on, only
        what is new is read. stream: is given the answer in pieces as it comes, and may end it by returning True (the
        answer then holds a few letters more).
        slicing: read large pictures in detail; otherwise as a whole, made small. Then `figures` tells what it took.

        Raises ValueError for an empty question, a picture that cannot be read and a conversation that does not fit.
        """
        if not isinstance(question, str) or not question.strip():
            raise ValueError("The question is empty. Ask something.")
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {max_new_tokens}: an answer takes 1 or more.")
        given = [] if images is None else [images] if isinstance(images, Picture) else list(images)
        opened = [open_picture(image) for image in given]
        turn = Turn(question, "", tuple(image for image, _ in opened), slicing)
        with self._lock:
            figures = Figures(notes=[note for _, notes in opened for note in notes])
            answer = self._answer(list(history or ()), turn, max_new_tokens, stream, figures)
            self.figures = figures
        if history is not None:
            history.append(replace(turn, answer=answer))
        return answer

    def _answer(self, history: list[Turn], turn: Turn, most: int, stream: Callable | None, figures: Figures) -> str:
        begin = perf_counter()
        text = self._prompt([*history, turn])
        ids, fresh = self._ids(text), [*history, turn]
        pending, past = [], 0
        if history and history == self._turns and text.startswith(self._said):
            known = self._ids(self._said)
            if ids[: len(known)] == known:  # no token reaches across the end of what was said
                ids, fresh, pending, past = ids[len(known) :], [turn], self._pending, self._past
        ids = pending + ids
        room = self.context - past - len(ids)
        if room < 1:
            raise ValueError(
                f"The conversation has {past + len(ids)} tokens with this question and its pictures, the model reads "
                f"{self.context}. Begin a new one, give fewer pictures, or turn slicing off."
            )
        figures.kept, figures.read = past, len(ids)

        self._turns = None  # until the answer is whole, nobody goes on from this cache
        if not past:
            self._language.reset_state()
        self._past = past
        embeddings = self._embeddings(ids)
        pictures = [self._encode(image, turn.slicing, figures) for turn in fresh for image in turn.images]
        places = np.flatnonzero(np.array(ids) == self._unknown)
        if len(places) != sum(map(len, pictures)):
            raise ValueError(f"The tokenizer makes other tokens of {UNKNOWN} here: the folder's files do not match.")
        if pictures:
            embeddings[0, places] = np.concatenate(pictures)
            figures.image_s = perf_counter() - begin

        tokens, said = [], []

        def hear(piece: str) -> genai.StreamingStatus:
            said.append(piece)
            if stream is not None and figures.ended != "stopped" and stream(piece) is True:
                return genai.StreamingStatus.STOP
            return genai.StreamingStatus.RUNNING

        streamer = genai.TextStreamer(self.tokenizer, hear)
        while not figures.ended:
            token = int(self._read(embeddings).argmax())
            figures.first_token_s = figures.first_token_s or perf_counter() - begin
            if token in self._stops:
                figures.ended = "stop"
                break
            tokens.append(token)
            if streamer.write(token) != genai.StreamingStatus.RUNNING:
                figures.ended = "stopped"
            elif len(tokens) == min(most, room):
                figures.ended = "length"
            else:
                embeddings = self._embeddings([token])
        streamer.end()
        answer = "".join(said)
        figures.generated, figures.seconds = len(tokens), perf_counter() - begin
        self._turns = [*history, replace(turn, answer=answer)]
        self._said, self._pending = text + answer, [] if figures.ended == "stop" else tokens[-1:]
        return answer

    def _prompt(self, turns: Iterable[Turn]) -> str:
        """The conversation as text, up to where the next answer begins."""
        messages, count = [], 0
        for turn in turns:
            if mark := next((mark for mark in MARKS if mark in turn.question + turn.answer), None):
                raise ValueError(f"The text holds {mark}, by which the model knows pictures. Write it without.")
            lines = []
            for image in turn.images:
                grid = self._plan(image, turn.slicing).grid
                lines.append(placeholder(grid, self._queries, self.version, count))
                count += 1
            messages.append({"role": "user", "content": "\n".join([*lines, turn.question])})
            messages.append({"role": "assistant", "content": turn.answer})
        return self.tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True)

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).input_ids.data[0].tolist()

    def _plan(self, image: Image.Image, slicing: bool) -> Plan:
        most = self._settings["max_slice_nums"] if slicing else 1
        return plan(image.size, most, self._settings["scale_resolution"], self._patch)

    def _encode(self, image: Image.Image, slicing: bool, figures: Figures) -> np.ndarray:
        """[pieces * queries, D]: what the language model reads of a picture, the overview first."""
        pieces = cut(image, self._plan(image, slicing))
        figures.slices += len(pieces)
        if self.version >= 2.6:
            return self._encode_any(pieces)
        return np.concatenate([self._encode_equal(equal) for equal in (pieces[:1], pieces[1:]) if equal])

    def _encode_any(self, pieces: list[Image.Image]) -> np.ndarray:
        """2.6: pieces of any shape side by side, padded."""
        given = batch(pieces, self._settings["image_size"] // self._patch, self._patch)
        mask = given.patch_attention_mask
        inputs = {"pixel_values": given.pixel_values, "position_ids": given.position_ids}
        features = _run(self._vision, inputs | {"patch_attention_mask": mask[:, None].astype(np.float32)})
        return self._resample(features, given.sizes, ~mask)

    def _encode_equal(self, pieces: list[Image.Image]) -> np.ndarray:
        """2.0: pieces of one shape."""
        rows, columns = pieces[0].height // self._patch, pieces[0].width // self._patch
        table = resized_positions(self._table, rows, columns).reshape(1, rows * columns, -1)
        pixels = np.stack([normalised(piece) for piece in pieces])
        features = _run(self._vision, {"pixel_values": pixels, "pos_embed": table})
        return self._resample(features, [(rows, columns)] * len(pieces), np.zeros(features.shape[:2], bool))

    def _resample(self, features: np.ndarray, sizes: Iterable[tuple[int, int]], padding: np.ndarray) -> np.ndarray:
        """[N * queries, D] of features [N, L, C] of pieces with so many (rows, columns) of patches."""
        width = self.config["hidden_size"]
        positions = np.zeros((features.shape[1], len(features), width), np.float32)
        for i, (rows, columns) in enumerate(sizes):
            positions[: rows * columns, i] = sincos_positions(rows, columns, width).reshape(-1, width)
        inputs = {"image_feature": features, "pos_embed": positions, "key_padding_mask": padding.astype(np.float32)}
        return _run(self._resampler, inputs).reshape(-1, width)

    def _embeddings(self, ids: list[int]) -> np.ndarray:
        """[1, T, D] of token ids."""
        return _run(self._text, {"input": np.array([ids], np.int64)})

    def _read(self, embeddings: np.ndarray) -> np.ndarray:
        """Read embeddings [1, T, D] into the KV cache; the logits [vocabulary] of the token that follows."""
        past, self._past = self._past, self._past + embeddings.shape[1]
        inputs = {
            "inputs_embeds": embeddings,
            "attention_mask": np.ones((1, self._past), np.int64),
            "position_ids": np.arange(past, self._past, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        return _run(self._language, inputs)[0, -1]


def _run(request: ov.InferRequest, inputs: dict[str, np.ndarray]) -> np.ndarray:
    request.infer(inputs)
    return request.get_output_tensor(0).data.copy()


def only_last(model: ov.Model) -> None:
    """Have a language model compute the logits of the last token alone: no other is looked at, and they are large."""
    node = model.output("logits").get_node()
    while node.get_type_name() != "MatMul":
        node = node.input_value(0).get_node()
    end = np.iinfo(np.int64).max
    last = ops.slice(node.input_value(0), np.int64([-1]), np.int64([end]), np.int64([1]), np.int64([1]))
    node.input(0).replace_source_output(last.output(0))
    model.validate_nodes_and_infer_types()


def open_picture(image: Picture) -> tuple[Image.Image, list[str]]:
    """A picture as upright RGB with 8 bits a channel, and what a viewer should know about it.

    Transparency becomes white, 16 bits become 8, of an animation the first frame is taken. Raises ValueError for what
    cannot be read, is too large or too long.
    """
    if not isinstance(image, Picture):
        raise ValueError(f"A picture is a PIL image or the name of a file, not a {type(image).__name__}.")
    file = getattr(image, "filename", "") if isinstance(image, Image.Image) else image
    name = Path(file).name if file else "The picture"
    notes: list[str] = []
    try:
        if not isinstance(image, Image.Image):
            image = Image.open(image)
        width, height = image.size
        if width * height > MOST_PIXELS:
            raise ValueError(_too_large(name, f"{width} x {height}"))
        if max(width, height) > MOST_RATIO * max(1, min(width, height)):
            raise ValueError(f"{name} has {width} x {height} pixels: that is too long and thin. Cut out a part of it.")
        if (frames := getattr(image, "n_frames", 1)) > 1:
            image.seek(0)
            notes.append(f"{name} is animated: of its {frames} frames the first one is taken.")
        image.load()
        return _rgb(ImageOps.exif_transpose(image), name), notes
    except FileNotFoundError as error:
        raise ValueError(f"{name} is not there. Correct its name.") from error
    except Image.DecompressionBombError as error:
        raise ValueError(_too_large(name, "far too many")) from error
    except (OSError, SyntaxError, EOFError) as error:
        raise ValueError(f"{name} cannot be read as a picture. Is it whole? Give a PNG, JPEG or WebP file.") from error


def _too_large(name: str, pixels: str) -> str:
    return f"{name} has {pixels} pixels; up to {MOST_PIXELS // 10**6} million are read. Make it smaller."


def _rgb(image: Image.Image, name: str) -> Image.Image:
    if image.mode == "F":
        raise ValueError(f"{name} holds floating-point numbers. Save it with 8 or 16 bits a channel.")
    if image.mode.startswith("I"):  # 16 bits; Pillow would cut them off at 255
        return Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")
