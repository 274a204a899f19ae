"""Questions about pictures: `VisionChat(folder).ask("photo.jpg", "What is on the table?").answer`.

Needs openvino, openvino-genai (for the tokenizer), numpy and Pillow. To use it elsewhere copy this folder.
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

from .slicing import Plan, batch, cut, normalise, placeholder, plan, resized_positions, sincos_positions

SUBMODELS = ("vision_embeddings", "resampler", "text_embeddings", "language")
UNKNOWN = "<unk>"  # a placeholder: an embedding of a picture takes the place of each
IMAGE_TOKENS = (UNKNOWN, "<image>", "</image>", "<slice>", "</slice>", "<image_id>", "</image_id>")
MAX_PIXELS = 80_000_000
MAX_ASPECT_RATIO = 100  # of the longer side to the shorter one: thinner pictures have too many patches
Picture = Image.Image | str | Path


@dataclass(frozen=True)
class Answer:
    """What the model wrote about a picture. `str(answer)` is the answer without the reasoning.

    separator: what stands between reasoning and answer, where the checkpoint was trained to reason first; the released
    ones were not, and theirs is empty.
    """

    text: str
    separator: str = ""

    @property
    def answer(self) -> str:
        """The answer: what follows the last separator, or the whole text where there is none."""
        return self._split()[1]

    @property
    def reasoning(self) -> str:
        """What the model wrote before the answer, or nothing."""
        return self._split()[0]

    def __str__(self) -> str:
        return self.answer

    def _split(self) -> tuple[str, str]:
        reasoning, _, answer = self.text.rpartition(self.separator) if self.separator else ("", "", self.text)
        return reasoning.strip(), answer.strip()


@dataclass(frozen=True)
class Turn:
    """A question, what the model wrote (`Answer.text`), the RGB pictures of the question, and whether they were sliced.

    The model reads all of it again in the next turn, its own reasoning included.
    """

    question: str
    text: str
    images: tuple[Image.Image, ...] = ()
    slicing: bool = True


@dataclass
class Timings:
    """Timings and token counts of an answer. Seconds count from the question."""

    image_s: float = 0.0  # slicing and encoding the pictures
    first_token_s: float = 0.0
    total_s: float = 0.0
    slices: int = 0  # pieces of pictures that were encoded: overviews and slices
    cached_tokens: int = 0  # of the conversation, in the KV cache already
    prompt_tokens: int = 0  # tokens and picture embeddings that were read for this answer
    generated_tokens: int = 0
    finish_reason: str = ""  # "stop", "length" (max_new_tokens or context) or "stopped" (by `stream`)
    notes: list[str] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float | None:
        """The rate after the first token; None for an answer of less than two tokens."""
        duration = self.total_s - self.first_token_s
        if self.generated_tokens < 2 or duration <= 0:
            return None
        return (self.generated_tokens - 1) / duration


class VisionChat:
    """MiniCPM-V 2.0 or 2.6 on OpenVINO, with greedy decoding.

    folder: the IR folder that `convert.py` writes. device: OpenVINO's name. properties: OpenVINO's, for all sub-models;
    by default the device chooses its precision (INFERENCE_PRECISION_HINT="f32", KV_CACHE_PRECISION="f32" are exact).
    Raises ValueError for a folder that is not one of these.

    `ask` may be called by several threads, which wait for each other. Its single steps, `encode_slices`, `embed` and
    `read`, share one KV cache and are for one thread.
    """

    def __init__(self, folder: str | Path, device: str = "CPU", **properties) -> None:
        folder = Path(folder)
        needed = [f"openvino_{part}_model.xml" for part in SUBMODELS] + ["openvino_tokenizer.xml", "config.json"]
        if missing := [name for name in needed if not (folder / name).is_file()]:
            raise ValueError(f"{folder} has no {', '.join(missing)}. Give the folder that the conversion wrote.")
        self.config = _read_json(folder / "config.json")
        self._settings = _read_json(folder / "preprocessor_config.json")
        self.version = float(self.config.get("version", 2.0))
        self._queries = self.config.get("query_num", 64)  # embeddings of a slice
        self._patch = self._settings["patch_size"]  # pixels
        self.context = self.config.get("max_position_embeddings", 4096)  # tokens that a conversation may have
        stop = _read_json(folder / "generation_config.json")["eos_token_id"]
        self._stop_ids = set(stop if isinstance(stop, list) else [stop])
        self.answer_separator = self.config.get("answer_separator", "")  # see `Answer`
        self._table = None if self.version >= 2.6 else np.load(folder / "vision_positions.npy", allow_pickle=False)
        self.tokenizer = genai.Tokenizer(folder)
        self._unknown = self._token_ids(UNKNOWN)[0]

        core = ov.Core()
        models = {part: core.read_model(folder / f"openvino_{part}_model.xml") for part in SUBMODELS}
        only_last(models["language"])
        requests = {
            part: core.compile_model(model, device, properties).create_infer_request() for part, model in models.items()
        }
        self._vision = requests["vision_embeddings"]
        self._resampler = requests["resampler"]
        self._text = requests["text_embeddings"]
        self._language = requests["language"]
        self.timings = Timings()
        self._lock = Lock()
        # The conversation in the KV cache: `_past` tokens of `_text_so_far`, without the `_pending` ids at its end
        self._turns: list[Turn] | None = None
        self._text_so_far = ""
        self._pending: list[int] = []
        self._past = 0

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
    ) -> Answer:
        """The answer to a question about pictures (files or PIL images), or about the conversation so far.

        history: earlier turns, a list of yours to which this one is added. As long as one conversation goes on, only
        its new tokens are read. stream: is called with the text in pieces as it comes, reasoning included, and may end
        it by returning True (the text then has a few more letters). slicing: read large pictures in detail; otherwise
        only as a whole, resized. `timings` has what it took.

        Raises ValueError for an empty question, a picture that cannot be read and a conversation that does not fit.
        """
        if not isinstance(question, str) or not question.strip():
            raise ValueError("The question is empty. Ask something.")
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {max_new_tokens}: an answer takes 1 or more.")
        if images is None:
            images = []
        elif isinstance(images, Picture):
            images = [images]
        opened = [open_picture(image) for image in images]
        turn = Turn(question, "", tuple(image for image, _ in opened), slicing)
        with self._lock:
            timings = Timings(notes=[note for _, notes in opened for note in notes])
            text = self._answer(list(history or ()), turn, max_new_tokens, stream, timings)
            self.timings = timings
        if history is not None:
            history.append(replace(turn, text=text))
        return Answer(text, self.answer_separator)

    def _answer(
        self, history: list[Turn], turn: Turn, max_new_tokens: int, stream: Callable | None, timings: Timings
    ) -> str:
        begin = perf_counter()
        text = self._prompt([*history, turn])
        ids, new_turns = self._token_ids(text), [*history, turn]
        pending, past = [], 0
        if history and history == self._turns and text.startswith(self._text_so_far):
            known = self._token_ids(self._text_so_far)
            if ids[: len(known)] == known:  # no token reaches across the end of the text so far
                ids, new_turns, pending, past = ids[len(known) :], [turn], self._pending, self._past
        ids = pending + ids
        remaining = self.context - past - len(ids)
        if remaining < 1:
            raise ValueError(
                f"The conversation has {past + len(ids)} tokens with this question and its pictures, the model reads "
                f"{self.context}. Begin a new one, give fewer pictures, or turn slicing off."
            )
        timings.cached_tokens = past
        timings.prompt_tokens = len(ids)

        self._turns = None  # no conversation continues from this cache until the answer is complete
        if not past:
            self.reset_cache()
        embeddings = self.embed(ids)  # [1, T, D]
        pictures = [self._encode(image, turn.slicing, timings) for turn in new_turns for image in turn.images]
        places = np.flatnonzero(np.array(ids) == self._unknown)
        if len(places) != sum(map(len, pictures)):
            raise ValueError(f"The tokenizer makes other tokens of {UNKNOWN} here: the folder's files do not match.")
        if pictures:
            embeddings[0, places] = np.concatenate(pictures)
            timings.image_s = perf_counter() - begin

        limit = min(max_new_tokens, remaining)
        tokens, pieces = [], []

        def on_piece(piece: str) -> genai.StreamingStatus:
            pieces.append(piece)
            if stream is not None and timings.finish_reason != "stopped" and stream(piece) is True:
                return genai.StreamingStatus.STOP
            return genai.StreamingStatus.RUNNING

        streamer = genai.TextStreamer(self.tokenizer, on_piece)
        while not timings.finish_reason:
            token = int(self.read(embeddings).argmax())
            timings.first_token_s = timings.first_token_s or perf_counter() - begin
            if token in self._stop_ids:
                timings.finish_reason = "stop"
                break
            tokens.append(token)
            if streamer.write(token) != genai.StreamingStatus.RUNNING:
                timings.finish_reason = "stopped"
            elif len(tokens) == limit:
                timings.finish_reason = "length"
            else:
                embeddings = self.embed([token])  # [1, 1, D]
        streamer.end()
        written = "".join(pieces)
        timings.generated_tokens = len(tokens)
        timings.total_s = perf_counter() - begin
        self._turns = [*history, replace(turn, text=written)]
        self._text_so_far = text + written
        self._pending = [] if timings.finish_reason == "stop" else tokens[-1:]  # the last token has not been read
        return written

    def _prompt(self, turns: Iterable[Turn]) -> str:
        """The conversation as text, up to where the next answer begins."""
        messages, count = [], 0
        for turn in turns:
            if token := next((token for token in IMAGE_TOKENS if token in turn.question + turn.text), None):
                raise ValueError(f"The text holds {token}, by which the model knows pictures. Write it without.")
            lines = []
            for image in turn.images:
                grid = self._plan(image, turn.slicing).grid
                lines.append(placeholder(grid, self._queries, self.version, count))
                count += 1
            messages.append({"role": "user", "content": "\n".join([*lines, turn.question])})
            messages.append({"role": "assistant", "content": turn.text})
        return self.tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True)

    def _token_ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).input_ids.data[0].tolist()

    def _plan(self, image: Image.Image, slicing: bool) -> Plan:
        max_slices = self._settings["max_slice_nums"] if slicing else 1
        return plan(image.size, max_slices, self._settings["scale_resolution"], self._patch)

    def _encode(self, image: Image.Image, slicing: bool, timings: Timings) -> np.ndarray:
        """[slices * queries, D]: the embeddings of a picture for the language model, the overview first."""
        slices = cut(image, self._plan(image, slicing))
        timings.slices += len(slices)
        if self.version >= 2.6:
            return self.encode_slices(slices)
        batches = [slices[:1], slices[1:]] if slices[1:] else [slices]  # the overview may have another shape
        return np.concatenate([self.encode_slices(equal) for equal in batches])

    def encode_slices(self, slices: list[Image.Image]) -> np.ndarray:
        """[N * queries, D]: the embeddings of N slices, RGB, for the language model.

        Their sides are multiples of the patch's; in 2.0 they have one shape.
        """
        return self._encode_2_6(slices) if self.version >= 2.6 else self._encode_2_0(slices)

    def _encode_2_6(self, slices: list[Image.Image]) -> np.ndarray:
        inputs = batch(slices, self._settings["image_size"] // self._patch, self._patch)
        mask = inputs.patch_attention_mask  # [N, L]
        arrays = {"pixel_values": inputs.pixel_values, "position_ids": inputs.position_ids}
        arrays["patch_attention_mask"] = mask[:, None].astype(np.float32)  # [N, 1, L]
        features = _run(self._vision, arrays)  # [N, L, C]
        return self._resample(features, inputs.sizes, ~mask)

    def _encode_2_0(self, slices: list[Image.Image]) -> np.ndarray:
        rows, columns = slices[0].height // self._patch, slices[0].width // self._patch
        table = resized_positions(self._table, rows, columns).reshape(1, rows * columns, -1)  # [1, L, C]
        pixels = np.stack([normalise(image) for image in slices])  # [N, 3, H, W]
        features = _run(self._vision, {"pixel_values": pixels, "pos_embed": table})  # [N, L, C]
        return self._resample(features, [(rows, columns)] * len(slices), np.zeros(features.shape[:2], bool))

    def _resample(self, features: np.ndarray, sizes: Iterable[tuple[int, int]], padding: np.ndarray) -> np.ndarray:
        """[N * queries, D] for features [N, L, C] of N slices.

        sizes: (rows, columns) of each slice's patches. padding: [N, L] bool, True where there is no patch.
        """
        width = self.config["hidden_size"]
        positions = np.zeros((features.shape[1], len(features), width), np.float32)  # [L, N, D]
        for i, (rows, columns) in enumerate(sizes):
            positions[: rows * columns, i] = sincos_positions(rows, columns, width).reshape(-1, width)
        inputs = {"image_feature": features, "pos_embed": positions, "key_padding_mask": padding.astype(np.float32)}
        return _run(self._resampler, inputs).reshape(-1, width)  # [N * queries, D]

    def embed(self, ids: list[int]) -> np.ndarray:
        """[1, T, D]: the embeddings of token ids."""
        return _run(self._text, {"input": np.array([ids], np.int64)})

    def reset_cache(self) -> None:
        """Empty the KV cache."""
        self._language.reset_state()
        self._past = 0
        self._turns = None

    def read(self, embeddings: np.ndarray) -> np.ndarray:
        """Read embeddings [1, T, D] into the KV cache; returns the logits [vocabulary] of the token that follows."""
        past = self._past
        self._past = past + embeddings.shape[1]
        inputs = {
            "inputs_embeds": embeddings,
            "attention_mask": np.ones((1, self._past), np.int64),  # [1, cached + T]
            "position_ids": np.arange(past, self._past, dtype=np.int64)[None],  # [1, T]
            "beam_idx": np.zeros(1, np.int32),
        }
        return _run(self._language, inputs)[0, -1]


def _run(request: ov.InferRequest, inputs: dict[str, np.ndarray]) -> np.ndarray:
    request.infer(inputs)
    return request.get_output_tensor(0).data.copy()


def _read_json(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def only_last(model: ov.Model) -> None:
    """Make a language model compute the logits of the last token alone: the others are not used, and they are large."""
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
        if width * height > MAX_PIXELS:
            raise ValueError(_too_large(name, f"{width} x {height}"))
        if max(width, height) > MAX_ASPECT_RATIO * max(1, min(width, height)):
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
    return f"{name} has {pixels} pixels; up to {MAX_PIXELS // 10**6} million are read. Make it smaller."


def _rgb(image: Image.Image, name: str) -> Image.Image:
    if image.mode == "F":
        raise ValueError(f"{name} holds floating-point numbers. Save it with 8 or 16 bits a channel.")
    if image.mode.startswith("I"):  # 16 bits; Pillow would cut them off at 255
        return Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")
