"""Packages without a real model, hostile archives, and the real endpoints with the engine's fake pipeline."""

import asyncio
import contextlib
import io
import tarfile
from pathlib import Path
from types import SimpleNamespace

import ollama

from notebooks.ollama_openvino.pipeline import pack
from notebooks.ollama_openvino.server.api import LIMITS, create_app
from notebooks.ollama_openvino.server.models import Models
from notebooks.ollama_openvino.server.store import Store
from tests.utils.serving import fakes

FILES = ("openvino_model", "openvino_tokenizer", "openvino_detokenizer")


def toy_ir(folder: Path, text: str = "", state: str = "ReadValue") -> Path:
    """An IR folder with all files of a language model, but without a real one. text: makes it differ from others.

    state: the type of its layer; a model without state makes vectors.
    """
    folder.mkdir(parents=True)
    for name in FILES:
        (folder / f"{name}.xml").write_text(f'<net><layer type="{state}" /></net>{text}', encoding="utf-8")
        (folder / f"{name}.bin").write_bytes(bytes(range(16)))
    config = '{"max_position_embeddings": 1000, "model_type": "toy"}'
    (folder / "config.json").write_text(config, encoding="utf-8")
    (folder / "manifest.json").write_text("{}", encoding="utf-8")
    return folder


def toy_package(folder: Path, text: str = "", **options) -> Path:
    """A package of `toy_ir`."""
    package = folder / f"toy{text}.tar.gz"
    pack(toy_ir(folder / f"ir{text}", text, **options), package)
    return package


def archive(path: Path, *members: tarfile.TarInfo, whole: bool = True, content: bytes = b"x") -> Path:
    """A tar.gz file with some members. whole: whether the files of a toy model come first."""
    with tarfile.open(path, "w:gz") as tar:
        if whole:
            for name in FILES:
                for suffix, data in ((".xml", b'type="ReadValue"'), (".bin", b"1234")):
                    info = tarfile.TarInfo(f"toy/{name}{suffix}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
        for member in members:
            member.size = member.size or (len(content) if member.isreg() else 0)
            tar.addfile(member, io.BytesIO(content) if member.isreg() else None)
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


class Tokenizer(fakes.Tokenizer):
    """Its chat template marks the roles."""

    def apply_chat_template(self, messages, add_generation_prompt, extra_context=None):
        super().apply_chat_template(messages, add_generation_prompt)
        prompt = "".join(f"[{message['role']}]{message['content']}" for message in messages) + "[assistant]"
        return prompt + ("<think>" if (extra_context or {}).get("enable_thinking") else "")


class Pipeline(fakes.Pipeline):
    def get_config(self):
        config = super().get_config()
        config.stop_token_ids = set()
        return config


class Engine(fakes.Engine):
    """The real engine with the fake pipeline, which answers with the prompt. made: all engines, in order."""

    made: list["Engine"] = []
    template = ""

    def _load(self) -> None:
        super()._load()
        self._pipeline = self.pipeline = Pipeline()
        self.tokenizer = Tokenizer()
        self.tokenizer.chat_template = self.template
        Engine.made.append(self)


class Embedder:
    """A text's vector is (its characters, 3, 4); a character is a token."""

    def __init__(self, folder: Path, device: str) -> None:
        self.lock = asyncio.Lock()

    def count(self, texts):
        return [len(text) for text in texts]

    def embed(self, texts):
        return [[float(len(text)), 3.0, 4.0] for text in texts]


@contextlib.contextmanager
def live(folder: Path, *, most: int = 2, running: int = 64, **limits):
    """Serve a store in a thread; yields an object with `url`, `client`, `store`, `models` and `guard`."""
    from dataclasses import replace

    store = Store(folder)
    models = Models(store, most=most, make_engine=Engine, make_embedder=Embedder)
    app = create_app(models, limits=replace(LIMITS, **limits), running=running)
    with fakes.served(app) as (url, _):
        client = ollama.Client(host=url, trust_env=False, timeout=60)
        try:
            yield SimpleNamespace(url=url, client=client, store=store, models=models, guard=app)
        finally:
            for one in Engine.made:
                one.pipeline.hold.set()
    for one in Engine.made:
        one.close()
    Engine.made.clear()
    store.close()


def add(app, package: Path, name: str = "toy", **settings) -> None:
    """Create a model of a package with the unmodified client."""
    digest = app.client.create_blob(package)
    app.client.create(model=name, files={package.name: digest}, **settings)
