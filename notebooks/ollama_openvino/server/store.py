"""The models of a server on disk, in Ollama's layout: blobs that are named by their SHA-256, and manifests.

    FOLDER/blobs/sha256-<hex>                                       packages, settings, texts
    FOLDER/manifests/registry.ollama.ai/library/NAME/TAG            which blobs make up a model
    FOLDER/unpacked/<hex>/                                          the IR of a package

Every file appears when it is complete. What a killed server leaves half-written is removed by the next one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from notebooks.ollama_openvino.pipeline import PackageError, kind_of, unpack
from utils.files import replaced, sha256

REGISTRY = "registry.ollama.ai"
MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
LAYER_TYPE = "application/vnd.ollama.image."  # and the name of a layer
DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
NAME = re.compile(r"(?:([\w][\w.-]{0,79})/)?([\w][\w.-]{0,79})(?::([\w][\w.-]{0,79}))?", re.ASCII)
NO_FILE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?|.*\.", re.IGNORECASE)  # on Windows
DEFAULT_CONTEXT = 4096  # of an IR whose config.json names none
PARTIAL = ".partial-"
GGUF_MAGIC, GZIP_MAGIC = b"GGUF", b"\x1f\x8b"


class StoreError(ValueError):
    """What cannot be stored or found; status: the HTTP status of the reply."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Model:
    """A stored model.

    digest: of its manifest. package: hexadecimal SHA-256 of its package or GGUF file, whose size is `size` bytes.
    format: "openvino" or "gguf". kind: "completion" or "embedding". family: such as "llama". context: the most tokens
    of prompt and answer. device: of OpenVINO, "" for the server's own. settings: parameters, system, messages, license,
    as `create` got them.
    """

    name: str
    digest: str
    package: str
    size: int
    format: str
    kind: str
    family: str
    context: int
    device: str
    modified: datetime
    settings: dict = field(default_factory=dict)


class Store:
    """The models in a folder. One server at a time may use it.

    max_bytes: of the files in a package. Raises ValueError where another server uses the folder.
    """

    def __init__(self, folder: Path, max_bytes: int = 64 * 2**30) -> None:
        from filelock import FileLock, Timeout

        self.folder, self.max_bytes = Path(folder), max_bytes
        self.blobs, self.unpacked = self.folder / "blobs", self.folder / "unpacked"
        self.manifests = self.folder / "manifests" / REGISTRY
        for each in (self.blobs, self.unpacked, self.manifests):
            each.mkdir(parents=True, exist_ok=True)
        self._owner = FileLock(self.folder / ".lock")
        try:
            self._owner.acquire(timeout=0)
        except Timeout:
            raise ValueError(f"Another server uses {self.folder}. End it, or give another folder.") from None
        self._changing = threading.RLock()
        self.clean()

    def close(self) -> None:
        self._owner.release()

    # --- blobs --------------------------------------------------------------------------------------------------

    def blob(self, digest: str) -> Path:
        """The path of a blob, which may be missing. digest: `sha256:<hex>`. Raises StoreError for anything else."""
        match = DIGEST.fullmatch(digest)
        if not match:
            raise StoreError(f"{digest[:100]!r} is no digest: it must be sha256: and 64 hexadecimal digits.")
        return self.blobs / f"sha256-{match[1]}"

    def partial_blob(self) -> Path:
        """A new file name for a blob that is being written; `keep` puts it in its place."""
        return self.blobs / f"{PARTIAL}{os.getpid()}-{os.urandom(8).hex()}"

    def keep(self, partial: Path, digest: str, found: str) -> None:
        """Put a complete file in the place of a blob. Raises StoreError where its SHA-256 `found` is another."""
        target = self.blob(digest)
        if not target.name.endswith(found):
            raise StoreError(f"The file has the digest sha256:{found}, not {digest}: it was changed or cut short.")
        os.replace(partial, target)

    def add(self, data: bytes) -> str:
        """Store bytes as a blob; returns its digest."""
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if not self.blob(digest).exists():
            with replaced(self.blob(digest)) as partial:
                partial.write_bytes(data)
        return digest

    # --- models -------------------------------------------------------------------------------------------------

    def list(self) -> list[Model]:
        """All models that can be read, the last changed first."""
        files = [file for file in self.manifests.glob("*/*/*") if file.is_file() and not file.name.startswith(".")]
        models = []
        for file in files:
            space, name, tag = file.relative_to(self.manifests).parts
            try:
                models.append(self.get(f"{name}:{tag}" if space == "library" else f"{space}/{name}:{tag}"))
            except StoreError:
                continue
        return sorted(models, key=lambda model: model.modified, reverse=True)

    def get(self, name: str) -> Model:
        """The model of a name. Raises StoreError with status 404 where there is none."""
        full, file = self._manifest(name)
        try:
            text = file.read_bytes()
            manifest = json.loads(text)
            config = json.loads(self.blob(manifest["config"]["digest"]).read_bytes())
            layers = {layer["mediaType"].removeprefix(LAYER_TYPE): layer for layer in manifest["layers"]}
            texts = {each: self.blob(layers[each]["digest"]).read_bytes() for each in layers if each != "model"}
            settings = {"parameters": json.loads(texts["params"])} if "params" in texts else {}
            settings |= {"messages": json.loads(texts["messages"])} if "messages" in texts else {}
            settings |= {each: texts[each].decode() for each in ("system", "license") if each in texts}
            own = config["openvino"]
            package, size = DIGEST.fullmatch(layers["model"]["digest"])[1], layers["model"]["size"]
            modified = datetime.fromtimestamp(file.stat().st_mtime, UTC)
            digest = hashlib.sha256(text).hexdigest()
            facts = config["model_format"], own["kind"], config["model_family"], own["context"], own["infer_device"]
        except (FileNotFoundError, NotADirectoryError):
            raise StoreError(f"model '{full}' not found", 404) from None
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"The manifest of {full} is damaged ({error}): create the model again.", 500) from error
        return Model(full, digest, package, size, *facts, modified, settings)

    def create(self, name: str, package: str, settings: dict, device: str = "") -> Iterable[str]:
        """Store a model; yields what is done. package: the digest of a blob, a package or a GGUF file.

        settings: parameters, system, messages, license. An earlier model of the name is replaced at the end. Raises
        StoreError, PackageError.
        """
        full, file = self._manifest(name)
        blob = self.blob(package)
        if not blob.is_file():
            raise StoreError(f"The blob {package} is missing: send it with POST /api/blobs/{package} first.")
        yield "verifying the package"
        form, kind, family, context = self._examine(blob)
        layers = [self._layer("model", package, blob.stat().st_size)]
        for key, each in (
            ("system", "system"),
            ("license", "license"),
            ("parameters", "params"),
            ("messages", "messages"),
        ):
            if settings.get(key):
                value = settings[key]
                data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
                layers.append(self._layer(each, self.add(data), len(data)))
                yield f"creating {key} layer"
        config = {"model_format": form, "model_family": family, "os": "any", "architecture": "any"}
        config |= {"openvino": {"model_type": "OpenVINO", "infer_device": device, "kind": kind, "context": context}}
        data = json.dumps(config).encode()
        entry = {"mediaType": CONFIG_TYPE, "digest": self.add(data), "size": len(data)}
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": entry, "layers": layers}
        yield "writing manifest"
        with self._changing, replaced(file) as partial:
            if not all(self.blob(each["digest"]).exists() for each in [entry, *layers]):
                raise StoreError(f"A blob of {full} was removed meanwhile: create the model again.", 409)
            partial.write_text(json.dumps(manifest), encoding="utf-8")
        yield "success"

    def copy(self, source: str, destination: str) -> None:
        """Give a model a second name. Raises StoreError."""
        self.get(source)
        (_, old), (_, new) = self._manifest(source), self._manifest(destination)
        with self._changing, replaced(new) as partial:
            shutil.copyfile(old, partial)

    def delete(self, name: str) -> None:
        """Remove a model, and the blobs that no other model needs. Raises StoreError where there is none."""
        full, file = self._manifest(name)
        with self._changing:
            if not file.is_file():
                raise StoreError(f"model '{full}' not found", 404)
            own = set(DIGEST.findall(file.read_text(encoding="utf-8", errors="replace")))
            file.unlink()
            self._remove(own)

    def folder_of(self, model: Model) -> Path:
        """What openvino_genai opens: the IR folder of a model, or its GGUF file. Raises PackageError."""
        blob = self.blob(f"sha256:{model.package}")
        if model.format != "gguf":
            return unpack(blob, self.unpacked, digest=model.package, max_bytes=self.max_bytes)
        link = self.unpacked / f"{model.package}.gguf"  # openvino_genai wants this ending
        if not link.exists():
            with replaced(link) as partial:
                try:
                    os.link(blob, partial)
                except OSError:  # a file system without hard links
                    shutil.copyfile(blob, partial)
        return link

    def clean(self) -> None:
        """Remove what is half-written, and what no model needs."""
        with self._changing:
            for file in [*self.manifests.glob(f"*/*/{PARTIAL}*"), *self.blobs.glob(f"{PARTIAL}*")]:
                _remove(file)
            for file in self.unpacked.glob(f"{PARTIAL}*"):
                _remove(file)
            self._remove({_hex(file) for file in [*self.blobs.iterdir(), *self.unpacked.iterdir()]})

    def _remove(self, digests: set[str]) -> None:
        """Remove the blobs and unpacked packages with these digests that no model needs."""
        for file in self.manifests.glob("*/*/*"):
            if file.is_file():
                digests = digests - set(DIGEST.findall(file.read_text(encoding="utf-8", errors="replace")))
        for file in [*self.blobs.iterdir(), *self.unpacked.iterdir()]:
            if _hex(file) in digests:
                _remove(file)

    def _examine(self, blob: Path) -> tuple[str, str, str, int]:
        """(format, kind, family, context) of a blob.

        Raises PackageError where it cannot be used, StoreError where it is damaged.
        """
        with blob.open("rb") as file:
            magic = file.read(4)
        if sha256(blob) != blob.name.removeprefix("sha256-"):
            blob.unlink()
            raise StoreError(f"The blob {blob.name} was damaged and has been removed: send it again.")
        if magic == GGUF_MAGIC:
            return "gguf", "completion", *_facts_of_gguf(blob)
        if magic[:2] != GZIP_MAGIC:
            raise PackageError("The file is neither a tar.gz package of an OpenVINO IR nor a GGUF file.")
        folder = unpack(blob, self.unpacked, max_bytes=self.max_bytes)
        return "openvino", kind_of(folder), *_facts_of_ir(folder)

    @staticmethod
    def _layer(each: str, digest: str, size: int) -> dict:
        return {"mediaType": LAYER_TYPE + each, "digest": digest.replace("sha256-", "sha256:"), "size": size}

    def _manifest(self, name: str) -> tuple[str, Path]:
        """(name with tag, path of the manifest). Raises StoreError for a name that no model can have.

        Names that differ in case only are one model's, since some systems have one file for them.
        """
        match = NAME.fullmatch(name)
        if not match or ".." in name or any(NO_FILE.fullmatch(part) for part in match.groups() if part):
            raise StoreError(
                f"{name[:100]!r} is no name of a model: use letters, digits, '.', '_', '-', and one ':' for a tag. "
                "Names that Windows keeps for itself, such as 'con', are none either."
            )
        wanted = Path(match[1] or "library", match[2], match[3] or "latest")
        known = (file.relative_to(self.manifests) for file in self.manifests.glob("*/*/*"))
        own = next((file for file in known if str(file).casefold() == str(wanted).casefold()), wanted)
        space, model, tag = own.parts
        full = f"{model}:{tag}" if space == "library" else f"{space}/{model}:{tag}"
        return full, self.manifests / own


def _hex(file: Path) -> str:
    """The digest in the name of a blob or of an unpacked package."""
    return file.name.removeprefix("sha256-").removesuffix(".gguf")


def _remove(file: Path) -> None:
    with suppress(OSError):  # Windows keeps files that are open; the next server removes them
        shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)


def _facts_of_ir(folder: Path) -> tuple[str, int]:
    """(family, context) of an IR folder, from its config.json."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        context = int(config.get("max_position_embeddings") or DEFAULT_CONTEXT)
        return str(config.get("model_type", "")), context
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise PackageError(f"config.json of the package is missing or cannot be read ({error}).") from error


def _facts_of_gguf(file: Path) -> tuple[str, int]:
    """(family, context) of a GGUF file, from its header."""
    from gguf import GGUFReader

    try:
        fields = GGUFReader(file).fields
        family = fields["general.architecture"].contents()
        return family, int(fields[f"{family}.context_length"].contents())
    except Exception as error:  # the reader trusts its input, and fails in many ways
        raise PackageError(f"The GGUF file cannot be read ({type(error).__name__}: {error}).") from error
