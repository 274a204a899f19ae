"""A model repository in the form that OpenVINO Model Server reads.

    FOLDER/config.json        names the model and its folder
    FOLDER/NAME/graph.pbtxt   how it is served: device, cache, limits (protobuf text format, LLMCalculatorOptions)
    FOLDER/NAME/...           model, tokenizer and detokenizer as OpenVINO IR, configuration, chat template

`write` creates a repository from an IR folder of optimum-intel's export. `read` checks one file by file.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from tempfile import TemporaryDirectory

from utils import paths
from utils.serving import engine

NETWORKS = ("openvino_model", "openvino_tokenizer", "openvino_detokenizer")
CALCULATOR = "type.googleapis.com/mediapipe.LLMCalculatorOptions"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

GRAPH = """\
input_stream: "HTTP_REQUEST_PAYLOAD:input"
output_stream: "HTTP_RESPONSE_PAYLOAD:output"
node {{
  name: "LLMExecutor"
  calculator: "HttpLLMCalculator"
  input_stream: "LOOPBACK:loopback"
  input_stream: "HTTP_REQUEST_PAYLOAD:input"
  input_side_packet: "LLM_NODE_RESOURCES:llm"
  output_stream: "LOOPBACK:loopback"
  output_stream: "HTTP_RESPONSE_PAYLOAD:output"
  input_stream_info {{ tag_index: "LOOPBACK:0" back_edge: true }}
  node_options {{
    [{calculator}] {{
{options}
    }}
  }}
  input_stream_handler {{
    input_stream_handler: "SyncSetInputStreamHandler"
    options {{
      [mediapipe.SyncSetInputStreamHandlerOptions.ext] {{ sync_set {{ tag_index: "LOOPBACK:0" }} }}
    }}
  }}
}}
"""


@dataclass(frozen=True)
class Options:
    """How a model is served; the names are those of LLMCalculatorOptions.

    cache_size: size of the KV cache in whole GB. max_num_seqs: sequences in a batch; further ones wait.
    max_num_batched_tokens: tokens per step with those of prompts, so that a long prompt does not delay the others.
    max_tokens_limit: the most tokens that a request may ask for. plugin_config: properties of the device.
    """

    device: str = "CPU"
    cache_size: int = 1
    enable_prefix_caching: bool = True
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_tokens_limit: int = 4096
    plugin_config: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("cache_size", "max_num_seqs", "max_num_batched_tokens", "max_tokens_limit"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} is {value!r}; it must be a whole number from 1 on.")
        if type(self.enable_prefix_caching) is not bool or type(self.device) is not str or not self.device:
            raise ValueError("enable_prefix_caching must be true or false, and device the name of one, such as CPU.")
        if not isinstance(self.plugin_config, dict):
            raise ValueError("plugin_config must be a JSON object of device properties.")


@dataclass(frozen=True)
class Repository:
    """A checked repository: the model's name, its folder, and its options."""

    folder: Path
    name: str
    model: Path
    options: Options
    context: int  # tokens, prompt and answer together

    @property
    def config(self) -> Path:
        return self.folder / "config.json"

    @property
    def settings(self) -> engine.Settings:
        """What the local server's engine needs to know."""
        options = asdict(self.options)
        scheduler = {name: options[name] for name in ("cache_size", "max_num_batched_tokens", "enable_prefix_caching")}
        batch, properties = self.options.max_num_seqs, self.options.plugin_config
        return engine.Settings(self.name, self.model, self.context, self.options.device, batch, scheduler, properties)


def write(folder: Path, name: str, model: Path, **options) -> Path:
    """Create the repository `folder` that serves the IR folder `model` under `name`; options: fields of `Options`.

    Files are hard links where the file system supports them, else copies. The folder is complete when it appears, and
    replaces an earlier repository. Raises ValueError for an invalid name, option or IR folder, and for a folder that
    holds something other than a repository.
    """
    folder, model = Path(folder), Path(model)
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot name a model: use letters, digits, '.', '_' and '-'.")
    unknown = set(options) - {each.name for each in fields(Options)}
    if unknown:
        raise ValueError(f"A model repository has no option {', '.join(sorted(unknown))}.")
    settings = Options(**options)
    _check_model(model)
    if folder.exists() and any(folder.iterdir()) and not (folder / "config.json").is_file():
        raise ValueError(f"{folder} holds something other than a model repository: choose an empty or a new folder.")
    partial, old = (folder.with_name(f".{folder.name}.{kind}-{os.getpid()}") for kind in ("partial", "old"))
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        (partial / name).mkdir(parents=True)
        for file in sorted(model.iterdir()):
            if file.is_file() and file.name not in ("manifest.json", "graph.pbtxt"):
                _link(file, partial / name / file.name)
        graph = GRAPH.format(calculator=CALCULATOR, options=_options_text(settings))
        (partial / name / "graph.pbtxt").write_text(graph, encoding="utf-8")
        config = {"model_config_list": [{"config": {"name": name, "base_path": name}}]}
        (partial / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
        read(partial)
        if folder.exists():
            folder.rename(old)
        partial.rename(folder)
    except BaseException:
        if old.exists() and not folder.exists():
            old.rename(folder)
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    return folder


@contextmanager
def temporary(name: str, model: Path, **options) -> Iterator[Path]:
    """Write a repository as `write` does, and remove it after the block; yields its folder.

    It is on the disk of the converted models, where it needs no space, because it links to them.
    """
    parent = paths.models_dir() / "repositories"
    parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=parent) as folder:
        yield write(Path(folder) / "models", name, model, **options)


def read(folder: Path) -> Repository:
    """Check a repository and return its contents. Raises ValueError that names the missing or damaged file."""
    folder = Path(folder)
    config = _json(folder / "config.json")
    try:
        (entry,) = config["model_config_list"]
        name, base = entry["config"]["name"], entry["config"]["base_path"]
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{folder / 'config.json'} must list one model with its name and base_path.") from None
    if not (isinstance(name, str) and NAME.fullmatch(name) and isinstance(base, str) and NAME.fullmatch(base)):
        raise ValueError(f"{folder / 'config.json'} names the model {name!r} in {base!r}: plain names are wanted.")
    model = folder / base
    graph = model / "graph.pbtxt"
    try:
        options = _options(parse(graph.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise ValueError(f"{graph} is missing: the repository is incomplete. Write it again.") from None
    except ValueError as error:
        raise ValueError(f"{graph} cannot be used: {error}") from error
    return Repository(folder, name, model, options, _check_model(model))


def parse(text: str) -> dict[str, list]:
    """Parse protobuf text format to {field: [value, ...]}; a value is a str, int, float, bool or such a dict.

    The parser knows what graph.pbtxt files use: `field: value`, `field { ... }` with or without colon, `[extension]`
    names, quoted strings, commas and semicolons between fields, comments. Raises ValueError for anything else.
    """
    pattern = r"""\s+|\#[^\n]*|(\[[\w./\s]+\]|[\w.+-]+|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|[{}:,;])|(.)"""
    tokens = []
    for match in re.finditer(pattern, text, re.DOTALL):
        if match[2]:
            raise ValueError(f"unexpected {match[2]!r} in line {text.count(chr(10), 0, match.start()) + 1}.")
        if match[1]:
            tokens.append(match[1])
    position = 0

    def take() -> str:
        nonlocal position
        if position == len(tokens):
            raise ValueError("it ends in the middle of a field.")
        position += 1
        return tokens[position - 1]

    def message(closed: bool) -> dict[str, list]:
        values: dict[str, list] = {}
        while position < len(tokens) or closed:
            name = take()
            if name == "}" and closed:
                return values
            if name in ",;":
                continue
            if not re.fullmatch(r"\[[\w./\s]+\]|[A-Za-z_]\w*", name):
                raise ValueError(f"{name} stands where a field's name should.")
            value = take()
            if value == ":":
                value = take()
            values.setdefault(name.strip("[] ").replace(" ", ""), []).append(
                message(closed=True) if value == "{" else _scalar(value)
            )
        return values

    return message(closed=False)


def _scalar(token: str) -> str | int | float | bool:
    if token[0] in "\"'":
        escapes = {"n": "\n", "t": "\t", "r": "\r"}
        return re.sub(r"\\(.)", lambda match: escapes.get(match[1], match[1]), token[1:-1])
    if token in ("true", "false"):
        return token == "true"
    for kind in (int, float):
        try:
            return kind(token)
        except ValueError:
            pass
    if re.fullmatch(r"[A-Z_]+", token):  # an enumeration's value
        return token
    raise ValueError(f"{token} is no value.")


def _options(graph: dict[str, list]) -> Options:
    """The options of the graph's one language model node. Raises ValueError where there is none."""
    nodes = [node for node in graph.get("node", []) if node.get("calculator") == ["HttpLLMCalculator"]]
    if len(nodes) != 1:
        raise ValueError(f"it has {len(nodes)} nodes with the calculator HttpLLMCalculator; one is wanted.")
    options = nodes[0].get("node_options", [{}])[0].get(CALCULATOR, [{}])[0]
    if any(len(values) > 1 for values in options.values()):
        raise ValueError("an option is given twice.")
    values = {name: value for name, (value,) in options.items()}
    if values.pop("models_path", None) not in ("./", "."):
        raise ValueError('models_path must be "./", the folder of the graph itself.')
    unknown = set(values) - {each.name for each in fields(Options)}
    if unknown:
        raise ValueError(f"this reader does not know the option {', '.join(sorted(unknown))}.")
    if "plugin_config" in values:
        try:
            values["plugin_config"] = json.loads(values["plugin_config"] or "{}")
        except (TypeError, ValueError) as error:
            raise ValueError(f"plugin_config is not JSON ({error}).") from error
    return Options(**values)


def _options_text(options: Options) -> str:
    values = {"models_path": "./"} | asdict(options)
    values["plugin_config"] = json.dumps(values["plugin_config"])
    return "\n".join(f"      {name}: {json.dumps(value)}" for name, value in values.items())


def _check_model(model: Path) -> int:
    """The context length in tokens of an IR folder. Raises ValueError where it is incomplete or damaged."""
    for network in NETWORKS:
        _check_network(model / f"{network}.xml")
    context = _json(model / "config.json").get("max_position_embeddings")
    if type(context) is not int or context < 1:
        raise ValueError(f"{model / 'config.json'} does not say max_position_embeddings, the length of the context.")
    return context


def _check_network(xml: Path) -> None:
    weights, end, names = xml.with_suffix(".bin"), 0, set()
    for file in (xml, weights):
        if not file.is_file():
            raise ValueError(f"{file} is missing: the folder is incomplete. Convert or write it again.")
    try:
        for _, element in ElementTree.iterparse(xml):
            names.add(element.tag)
            if element.tag == "data" and "offset" in element.attrib:
                end = max(end, int(element.attrib["offset"]) + int(element.attrib["size"]))
            element.clear()
    except (ElementTree.ParseError, KeyError, ValueError) as error:
        raise ValueError(f"{xml} is damaged or cut short ({error}). Convert or write it again.") from error
    if not {"net", "layer"} <= names:
        raise ValueError(f"{xml} is not an OpenVINO IR.")
    if (size := weights.stat().st_size) != end:
        raise ValueError(f"{weights} has {size} bytes where {xml.name} wants {end}. Convert or write it again.")


def _json(file: Path) -> dict:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{file} is missing: the folder is incomplete. Convert or write it again.") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read ({error}).") from error
    if not isinstance(value, dict):
        raise ValueError(f"{file} is not a JSON object.")
    return value


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source.resolve(), target)
    except OSError:  # another disk, or one without hard links
        shutil.copyfile(source, target)
