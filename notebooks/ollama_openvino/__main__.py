"""`python -m notebooks.ollama_openvino COMMAND`: serve models, and manage those of a running server.

serve, create, run, list, ps, show, stop, rm and pack do what the commands of the same names do in Ollama and tar.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import httpx
import ollama

from notebooks.ollama_openvino.pipeline import Modelfile, file_sha256, pack, read
from notebooks.ollama_openvino.server import process
from utils import command
from utils.tables import Table, number

HOST = f"http://127.0.0.1:{process.PORT}"
PACKAGES = (".tar.gz", ".tgz", ".gguf")


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 1 after a mistake, with a message."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["serve"]:
        return process.main(arguments[1:])
    options = _parser().parse_args(arguments)
    try:
        return command.run(options.work, options)
    except (ollama.ResponseError, ConnectionError, httpx.HTTPError) as error:
        print(getattr(error, "error", "") or error, file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m notebooks.ollama_openvino", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, work, text: str, *positional: str) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=text, description=text)
        one.set_defaults(work=work)
        for each in positional:
            one.add_argument(each, type=Path if each in ("folder", "archive") else str)
        if name != "pack":
            host = os.environ.get("OLLAMA_HOST") or HOST
            one.add_argument("--host", type=address, default=host, help="default %(default)s")
        return one

    commands.add_parser("serve", help="serve the models of a store", add_help=False)
    add("pack", _pack, "write an IR folder as a package", "folder", "archive")
    create = add("create", _create, "make a model of a Modelfile", "model")
    create.add_argument("-f", "--file", type=Path, default=Path("Modelfile"), help="default %(default)s")
    run = add("run", _run, "ask a model a question, or chat with it", "model")
    run.add_argument("prompt", nargs="?", help="without it, questions are read from standard input")
    add("list", _list, "list the models")
    add("ps", _ps, "list the models in memory")
    add("show", _show, "print a model's Modelfile", "model")
    add("stop", _stop, "take a model out of memory", "model")
    add("rm", _remove, "remove a model", "model")
    return parser


def address(host: str) -> str:
    """The URL of a server, whose scheme and port may be left out, as Ollama's clients allow."""
    if "://" in host:
        return host
    url = httpx.URL(f"http://{host}")
    return str(url if url.port else url.copy_with(port=process.PORT))


def client(host: str) -> ollama.Client:
    """A client that asks no proxy for a server on this machine."""
    return ollama.Client(host=host, trust_env=False)


def create(host: str, model: str, modelfile: Modelfile, folder: Path):
    """Make a model on the server; yields what is done. folder: that of the package which the Modelfile names.

    The ollama package knows no ModelType and InferDevice, so this is the plain request. Raises ValueError for a package
    that is missing, httpx.HTTPStatusError, and RuntimeError for an error of the server.
    """
    if modelfile.template:
        raise ValueError(
            "TEMPLATE is not supported: the package has a chat template, which is applied. Remove the line."
        )
    body = {"model": model, "model_type": modelfile.model_type, "infer_device": modelfile.device}
    body |= {"parameters": modelfile.parameters, "system": modelfile.system, "license": modelfile.licences}
    body["messages"] = [{"role": role, "content": text} for role, text in modelfile.messages]
    with httpx.Client(base_url=host, trust_env=False, timeout=None) as http:
        if modelfile.base.lower().endswith(PACKAGES):
            package = folder / modelfile.base
            if not package.is_file():
                raise ValueError(f"{package} is missing: FROM names a package that is not there.")
            digest = f"sha256:{file_sha256(package)}"
            if http.head(f"/api/blobs/{digest}").status_code != 200:
                yield "sending the package"
                with package.open("rb") as file:
                    _check(http.post(f"/api/blobs/{digest}", content=file))
            body["files"] = {package.name: digest}
        else:
            body["from"] = modelfile.base
        with http.stream("POST", "/api/create", json=body) as reply:
            if reply.status_code != 200:
                reply.read()
                _check(reply)
            for line in reply.iter_lines():
                status = json.loads(line)
                if "error" in status:
                    raise ValueError(status["error"])
                yield status["status"]


def _check(reply: httpx.Response) -> None:
    if reply.is_error:
        raise ValueError(reply.json().get("error", reply.text))


def _pack(options: argparse.Namespace) -> None:
    print(f"sha256:{pack(options.folder, options.archive)}")


def _create(options: argparse.Namespace) -> None:
    for status in create(options.host, options.model, read(options.file), options.file.parent):
        print(status, flush=True)


def _run(options: argparse.Namespace) -> None:
    messages: list = []
    questions = [options.prompt] if options.prompt else (line.rstrip("\n") for line in sys.stdin)
    for question in questions:
        messages.append({"role": "user", "content": question})
        answer = ""
        for piece in client(options.host).chat(options.model, messages, stream=True):
            answer += piece.message.content or ""
            print(piece.message.content or "", end="", flush=True)
        print()
        messages.append({"role": "assistant", "content": answer})


def _list(options: argparse.Namespace) -> None:
    models = client(options.host).list().models
    lines = [
        [each.model, each.digest[:12], f"{number(each.size / 1e6)} MB", f"{each.modified_at:%Y-%m-%d}"]
        for each in models
    ]
    print(Table(["Name", "Id", "Size", "Modified"], lines))


def _ps(options: argparse.Namespace) -> None:
    models = client(options.host).ps().models
    lines = [[each.name, f"{number(each.size / 1e6)} MB", f"{each.expires_at:%Y-%m-%d %H:%M}"] for each in models]
    print(Table(["Name", "In memory", "Until"], lines))


def _show(options: argparse.Namespace) -> None:
    print(client(options.host).show(options.model).modelfile, end="")


def _stop(options: argparse.Namespace) -> None:
    client(options.host).generate(options.model, keep_alive=0)


def _remove(options: argparse.Namespace) -> None:
    client(options.host).delete(options.model)


if __name__ == "__main__":
    sys.exit(main())
