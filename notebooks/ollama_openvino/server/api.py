"""Ollama's endpoints over the models of a store. `Guard` checks every request first."""

from __future__ import annotations

import asyncio
import hashlib
import json
import queue
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from notebooks.ollama_openvino.pipeline import Modelfile, ModelfileError, PackageError, write
from notebooks.ollama_openvino.server import parameters, requests
from notebooks.ollama_openvino.server.answers import BEGIN, StopFilter, Thoughts
from notebooks.ollama_openvino.server.models import THINK, Lease, Models
from notebooks.ollama_openvino.server.store import Model, StoreError
from utils.serving import start
from utils.serving.engine import EngineError, Generation
from utils.serving.guard import Guard, Limits, RequestError, Rules, job

LIMITS = Limits(body=4 * 2**20, depth=64)
COUNTED = {"/api/generate", "/api/chat", "/api/embed", "/api/embeddings"}
RULES = Rules(counted=COUNTED, parsed=set(requests.CHECKS) - COUNTED, json_only=False)
MAX_CONCURRENT = 64  # requests that are answered; `waiting` more may queue
SILENT_S = 60.0  # an upload that sends nothing for so long has ended
NDJSON = "application/x-ndjson"


def create_app(
    models: Models, *, host: str = "127.0.0.1", limits: Limits = LIMITS, running: int = MAX_CONCURRENT
) -> Guard:
    """The ASGI application. running, limits.waiting: requests that are answered at once, and that may queue."""
    app = FastAPI(title="OpenVINO for Ollama clients", openapi_url=None, redirect_slashes=False)
    _add_answers(app, models)
    _add_management(app, models)
    _add_blobs(app, models)
    _add_errors(app)
    return Guard(app, requests.check, RULES, max_concurrent=running + limits.waiting, host=host, limits=limits)


# --- text and vectors -----------------------------------------------------------------------------------------


def _add_answers(app: FastAPI, models: Models) -> None:
    async def text(http: Request):
        chat, request = http.url.path == "/api/chat", job.get().request
        lease = await _take(models, request, "completion")
        if request["load"]:
            return _loaded(lease, request, chat)
        lines = _answer(lease, request, chat)
        first = await anext(lines)  # an error before the first line has its own HTTP status
        if request["stream"]:
            return StreamingResponse(_as_text(first, lines), media_type=NDJSON)
        return JSONResponse(await _whole(first, lines, chat))

    async def embed(http: Request):
        request = job.get().request
        begin = time.perf_counter_ns()
        lease = await _take(models, request, "embedding")
        vectors, tokens = await _vectors(lease, request)
        if http.url.path == "/api/embeddings":
            return {"embedding": vectors[0] if vectors else []}
        durations = {"total_duration": time.perf_counter_ns() - begin, "load_duration": int(lease.load_s * 1e9)}
        return {"model": request["model"], "embeddings": vectors, **durations, "prompt_eval_count": tokens}

    for path in ("/api/generate", "/api/chat"):
        app.add_api_route(path, text, methods=["POST"], response_model=None)
    for path in ("/api/embed", "/api/embeddings"):
        app.add_api_route(path, embed, methods=["POST"], response_model=None)


async def _take(models: Models, request: dict, kind: str) -> Lease:
    lease = await models.take(request["model"], request["keep_alive"], kind)
    job.get().generations.append(lease)  # given back when the request ends, however it ends
    return lease


def _loaded(lease: Lease, request: dict, chat: bool) -> JSONResponse:
    """The reply to a request without a prompt, which loads a model, or unloads it with keep_alive 0."""
    reason = "unload" if request["keep_alive"] == 0 else "load"
    return JSONResponse(_line(request["model"], chat, "") | {"done": True, "done_reason": reason})


async def _answer(lease: Lease, request: dict, chat: bool) -> AsyncIterator[dict]:
    """Yield the lines of a reply; the last has `done`. Raises RequestError, but only before the first yield."""
    begin = time.perf_counter_ns()
    generation, sampling, inside = await _start(lease, request)
    stop, thoughts = StopFilter(sampling.stop), Thoughts(inside)
    separate = lease.loaded.thinks and request["schema"] is None
    first_ns = None
    while True:
        try:
            piece = await generation.read()
        except EngineError as error:
            if first_ns is None:
                raise RequestError(500, str(error)) from error
            yield {"error": str(error)}  # too late for another HTTP status
            return
        first_ns = first_ns or time.perf_counter_ns()
        last = piece.finish_reason is not None
        text = stop.feed(piece.text, last)
        done = last or stop.found
        thinking, answer = thoughts.feed(text, done) if separate else ("", text)
        if thinking or answer:
            yield _line(request["model"], chat, answer, thinking)
        if done:
            break
    if stop.found:
        generation.abort()
    now = time.perf_counter_ns()
    yield _line(request["model"], chat, "") | {
        "done": True,
        "done_reason": "stop" if stop.found else piece.finish_reason,
        "total_duration": now - begin + int(lease.load_s * 1e9),
        "load_duration": int(lease.load_s * 1e9),
        "prompt_eval_count": generation.prompt_tokens,
        "prompt_eval_duration": first_ns - begin,
        "eval_count": piece.tokens,
        "eval_duration": now - first_ns,
    }


async def _start(lease: Lease, request: dict) -> tuple[Generation, parameters.Sampling, bool]:
    """(the generation, its sampling, whether the prompt has opened thoughts). Raises RequestError."""
    worker, model = lease.worker, lease.model
    sampling = parameters.sampling(model.settings.get("parameters", {}), request["options"], model.context)
    if request["think"] and not lease.loaded.thinks:
        raise RequestError(400, f"{model.name} does not support thinking.")
    prompt = request["prompt"]
    raw = prompt is not None
    if not raw:
        messages = _with_defaults(model, request["messages"])
        extra = {} if request["think"] is None else {"enable_thinking": bool(request["think"])}
        try:
            prompt = await asyncio.to_thread(
                worker.tokenizer.apply_chat_template, messages, add_generation_prompt=True, extra_context=extra
            )
        except Exception as error:  # a chat template may reject roles or their order
            raise RequestError(400, f"The chat template cannot take these messages: {str(error).strip()}") from error
    ids = (await asyncio.to_thread(worker.tokenizer.encode, prompt, add_special_tokens=raw)).input_ids
    length, left = ids.shape[1], sampling.context - ids.shape[1]
    if length == 0 or left < 1:
        raise RequestError(400, f"The prompt has {length} tokens; it must have from 1 to {sampling.context - 1}.")
    config = worker.config()
    for name, value in sampling.fields.items():
        setattr(config, name, value)
    config.stop_token_ids = set(config.stop_token_ids) | sampling.stop_ids
    config.max_new_tokens = left if sampling.length < 0 else max(1, min(sampling.length, left))
    if request["schema"] is not None:
        _constrain(config, request["schema"])
    return start.submit(worker, ids, config), sampling, prompt.rstrip().endswith(BEGIN)


def _with_defaults(model: Model, messages: list[dict]) -> list[dict]:
    """The messages of a request after those of the model; a system message of the request replaces the model's."""
    own = [{"role": "system", "content": model.settings["system"]}] if model.settings.get("system") else []
    if messages[0]["role"] == "system":
        own, messages = messages[:1], messages[1:]
    return own + model.settings.get("messages", []) + messages


def _constrain(config, schema: str) -> None:
    """Let only text that follows a JSON schema be generated."""
    import openvino_genai

    config.structured_output_config = openvino_genai.StructuredOutputConfig(json_schema=schema)


def _line(model: str, chat: bool, text: str, thinking: str = "") -> dict:
    extra = {"thinking": thinking} if thinking else {}
    content = {"message": {"role": "assistant", "content": text} | extra} if chat else {"response": text} | extra
    return {
        "model": model,
        "created_at": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        **content,
        "done": False,
    }


async def _as_text(first: dict, lines: AsyncIterator[dict]) -> AsyncIterator[str]:
    yield json.dumps(first, ensure_ascii=False) + "\n"
    async for line in lines:
        yield json.dumps(line, ensure_ascii=False) + "\n"


async def _whole(first: dict, lines: AsyncIterator[dict], chat: bool) -> dict:
    """The lines of a reply as one. Raises RequestError where it broke off."""
    every = [first] + [line async for line in lines]
    if "error" in every[-1]:
        raise RequestError(500, every[-1]["error"])
    parts = [line["message"] if chat else line for line in every]
    texts = {
        key: "".join(part.get(key, "") for part in parts) for key in ("content" if chat else "response", "thinking")
    }
    texts = {key: text for key, text in texts.items() if text or key != "thinking"}
    return every[-1] | ({"message": {"role": "assistant"} | texts} if chat else texts)


async def _vectors(lease: Lease, request: dict) -> tuple[list[list[float]], int]:
    """(a vector for each text, the tokens of all). Raises RequestError."""
    worker, context = lease.worker, lease.model.context
    if not request["texts"]:
        return [], 0
    async with worker.lock:
        counts = await asyncio.to_thread(worker.count, request["texts"])
        if not request["truncate"] and max(counts) > context:
            raise RequestError(400, f"A text has {max(counts)} tokens, more than the {context} of {lease.model.name}.")
        vectors = await asyncio.to_thread(worker.embed, request["texts"])
    return [_shortened(vector, request["dimensions"]) for vector in vectors], sum(min(n, context) for n in counts)


def _shortened(vector: list[float], dimensions: int) -> list[float]:
    """The first numbers of a vector, at length 1 again; 0 dimensions: all of them."""
    part = vector[:dimensions] if dimensions else vector
    length = sum(value * value for value in part) ** 0.5 or 1.0
    return [value / length for value in part] if dimensions else list(part)


# --- models ---------------------------------------------------------------------------------------------------


def _add_management(app: FastAPI, models: Models) -> None:
    store = models.store

    @app.get("/")
    @app.head("/")
    async def root():
        return PlainTextResponse("OpenVINO serves Ollama clients here.")

    @app.get("/api/version")
    async def version():
        return {"version": f"0.0.0-openvino-genai-{metadata.version('openvino-genai').partition('-')[0]}"}

    @app.get("/api/tags")
    async def tags():
        return {"models": [_entry(model) for model in await asyncio.to_thread(store.list)]}

    @app.get("/api/ps")
    async def ps():
        running = []
        for loaded in models.loaded.values():
            own = {"size": loaded.bytes, "size_vram": 0, "context_length": loaded.model.context}
            expires = loaded.expires.isoformat().replace("+00:00", "Z")
            running.append(_entry(replace(loaded.model, name=loaded.name)) | own | {"expires_at": expires})
        return {"models": running}

    @app.post("/api/show")
    async def show():
        model = await asyncio.to_thread(store.get, job.get().request["model"])
        template = await asyncio.to_thread(_template, store, model)
        settings = model.settings
        file = Modelfile(
            model.name, "OpenVINO", model.device, settings.get("parameters", {}), settings.get("system", "")
        )
        file.messages = [(message["role"], message["content"]) for message in settings.get("messages", [])]
        abilities = [model.kind] + (["thinking"] if any(mark in template for mark in THINK) else [])
        return {
            "modelfile": _written(file),
            "parameters": "\n".join(f"{key} {json.dumps(value)}" for key, value in file.parameters.items()),
            "template": template,
            "license": settings.get("license", ""),
            "system": file.system,
            "details": _details(model),
            "model_info": {"general.architecture": model.family, f"{model.family}.context_length": model.context},
            "capabilities": abilities,
            "modified_at": model.modified.isoformat(),
        }

    @app.post("/api/create")
    async def create():
        request = job.get().request
        statuses = _create(models, request)
        if request["stream"]:
            return StreamingResponse(_as_text(await anext(statuses), statuses), media_type=NDJSON)
        last = [status async for status in statuses][-1]
        return JSONResponse(last, 400 if "error" in last else 200)

    @app.post("/api/copy")
    async def copy():
        request = job.get().request
        await asyncio.to_thread(store.copy, request["source"], request["destination"])
        return Response()

    @app.delete("/api/delete")
    async def delete():
        name = job.get().request["model"]
        models.retire(name)  # requests that it is answering go on
        await models.settled()
        await asyncio.to_thread(store.delete, name)
        return Response()

    async def registry():
        raise RequestError(501, "This server has no registry: pack an IR folder, and create a model of the package.")

    for path in ("/api/pull", "/api/push"):
        app.add_api_route(path, registry, methods=["POST"])


async def _create(models: Models, request: dict) -> AsyncIterator[dict]:
    """Yield the statuses of a new model; the last is "success" or an error."""
    store, settings = models.store, request["settings"]
    done: queue.SimpleQueue = queue.SimpleQueue()

    def work() -> None:
        try:
            package, device, own = request["file"], request["device"], settings
            if request["from"]:
                base = store.get(request["from"])
                package, device = f"sha256:{base.package}", device or base.device
                own = base.settings | settings
                own["parameters"] = base.settings.get("parameters", {}) | settings.get("parameters", {})
            for status in store.create(request["model"], package, own, device):
                done.put({"status": status})
        except (StoreError, PackageError, OSError) as error:
            done.put({"error": str(error)})
        except Exception as error:
            done.put({"error": f"Internal error: {type(error).__name__}"})
            raise

    task = asyncio.ensure_future(asyncio.to_thread(work))
    while True:
        status = await asyncio.to_thread(done.get)
        yield status
        if "error" in status or status["status"] == "success":
            break
    await task


def _written(file: Modelfile) -> str:
    """The text of a Modelfile, without the texts that no Modelfile can hold."""
    try:
        return write(file)
    except ModelfileError as error:
        return f"# {error}\n" + write(replace(file, system="", messages=[]))


def _template(store, model: Model) -> str:
    """The chat template of a model's package, "" where it has none. It is read without loading the model."""
    if model.format == "gguf":
        return ""
    folder = store.folder_of(model)
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    try:
        return json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8")).get("chat_template") or ""
    except (OSError, ValueError):
        return ""


def _entry(model: Model) -> dict:
    names = {"name": model.name, "model": model.name, "modified_at": model.modified.isoformat()}
    return names | {"size": model.size, "digest": model.digest, "details": _details(model)}


def _details(model: Model) -> dict:
    families = [model.family] if model.family else []
    details = {"parent_model": "", "format": model.format, "family": model.family, "families": families}
    return details | {"parameter_size": "", "quantization_level": ""}


# --- blobs ----------------------------------------------------------------------------------------------------


def _add_blobs(app: FastAPI, models: Models) -> None:
    store = models.store

    @app.head("/api/blobs/{digest}")
    async def has(digest: str):
        return Response(status_code=200 if store.blob(digest).is_file() else 404)

    @app.post("/api/blobs/{digest}")
    async def receive(digest: str, http: Request):
        store.blob(digest)  # an invalid digest is refused before anything is read
        announced, free = http.headers.get("content-length", "0"), shutil.disk_usage(store.blobs).free
        if not announced.isdigit() or int(announced) > min(free, store.max_bytes):
            raise RequestError(413, f"The file is larger than the disk's {free} free bytes, or than {store.max_bytes}.")
        partial = store.partial_blob()
        try:
            found = await _save(http, partial, min(free, store.max_bytes))
            await asyncio.to_thread(store.keep, partial, digest, found)
        finally:
            partial.unlink(missing_ok=True)
        return Response(status_code=201)


async def _save(http: Request, partial: Path, most: int) -> str:
    """Write the body of a request to a file; returns its SHA-256. Raises RequestError."""
    hashed, size, chunks = hashlib.sha256(), 0, http.stream().__aiter__()
    with partial.open("wb") as file:
        while True:
            try:
                async with asyncio.timeout(SILENT_S):
                    chunk = await anext(chunks)
            except StopAsyncIteration:
                return hashed.hexdigest()
            except TimeoutError:
                raise RequestError(408, "The file took too long to arrive.", {"Connection": "close"}) from None
            size += len(chunk)
            if size > most:
                raise RequestError(413, f"The file is larger than {most} bytes.", {"Connection": "close"})
            hashed.update(chunk)
            file.write(chunk)


def _add_errors(app: FastAPI) -> None:
    """Answer every error as {"error": message}."""

    @app.exception_handler(StoreError)
    async def store_error(http: Request, error: StoreError):
        return JSONResponse({"error": str(error)}, error.status)

    @app.exception_handler(PackageError)
    async def package_error(http: Request, error: PackageError):
        return JSONResponse({"error": str(error)}, 400)

    @app.exception_handler(StarletteHTTPException)
    async def http_error(http: Request, error: StarletteHTTPException):
        return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def internal_error(http: Request, error: Exception):
        return JSONResponse({"error": f"Internal error: {type(error).__name__}"}, 500)
