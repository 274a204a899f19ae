"""On which devices a notebook was run, and what came of it: a row for each device of each machine.

`make run CASE=dien ARGS="--device GPU --record"` adds the row of a reader's machine to results/devices/dien.json and to
the notebook's README.
"""

import json
import platform
from collections.abc import Iterable, Mapping
from datetime import date as calendar
from importlib import metadata
from pathlib import Path

from utils.files import replaced
from utils.paths import ROOT
from utils.tables import Table

FOLDER = ROOT / "results" / "devices"
KINDS = {"CPU": "CPU", "GPU": "Intel GPU", "NPU": "NPU", "AUTO": "AUTO"}
FIELDS = {"device", "name", "system", "openvino", "model", "date", "result"}
PASSES = "passes"


def offered(found: Iterable[str]) -> list[str]:
    """What DEVICE may be, given the devices that OpenVINO finds: these, "GPU" for "GPU.0", and "AUTO"."""
    found = list(found)
    kinds = [name.partition(".")[0] for name in found]
    return [*dict.fromkeys(name for pair in zip(kinds, found, strict=True) for name in pair), "AUTO"]


def record(case: str, device: str, model: str, result: str, folder: Path = FOLDER) -> Path:
    """Add what a run on this machine came to: PASSES, or why it failed. It replaces this machine's earlier row.

    Returns the file. Raises ValueError for a file that cannot be read.
    """
    row = {
        "device": device,
        "name": full_name(device),
        "system": system(),
        "openvino": metadata.version("openvino"),
        "model": model,
        "date": calendar.today().isoformat(),
        "result": " ".join(result.split())[:200],
    }
    path = folder / f"{case}.json"
    same = ("device", "name", "system", "model")
    rows = [earlier for earlier in load(path) if [earlier[key] for key in same] != [row[key] for key in same]]
    text = json.dumps([*rows, row], indent=1, ensure_ascii=False) + "\n"
    with replaced(path) as partial:
        partial.write_bytes(text.encode())
    return path


def load(path: Path) -> list[dict]:
    """The rows of a file; none when there is no file. Raises ValueError for anything that `record` does not write."""
    if not path.is_file():
        return []
    rows = json.loads(path.read_text(encoding="utf-8"))
    whole = isinstance(rows, list) and all(isinstance(row, dict) and set(row) == FIELDS for row in rows)
    if not whole or not all(isinstance(value, str) for row in rows for value in row.values()):
        raise ValueError(
            f"{path} is no list of rows with {', '.join(sorted(FIELDS))}. `make run ... --record` writes it."
        )
    return rows


def full_name(device: str) -> str:
    """What the maker calls a device; of AUTO the devices that it chooses from."""
    import openvino as ov

    core = ov.Core()
    if device == "AUTO":
        return f"of {', '.join(core.available_devices)}"
    return core.get_property(device, "FULL_DEVICE_NAME").strip()


def system() -> str:
    """The system, such as "Windows 11", and the processor's architecture."""
    name = platform.system()
    if name == "Darwin":
        name = f"macOS {platform.mac_ver()[0]}"
    elif name == "Windows":
        name = f"Windows {platform.release()}"
    return f"{name}, {platform.machine()}"


def table(case: str, live: Mapping | None, passed: bool, rows: Iterable[Mapping]) -> str:
    """A README's table: a line for each run, one for each kind of device that nobody has tried, and how to add a row.

    live: the notebook's own results, and whether they pass; rows: what `record` wrote.
    """
    rows, lines = list(rows), []
    for kind, title in KINDS.items():
        own = [row for row in rows if row["device"].partition(".")[0] == kind]
        tried = [[f"{row['name']}; {row['system']}", f"{row['openvino']}, {row['date']}", _result(row)] for row in own]
        if live and live["device"] == kind:
            name, colon, _ = live["cpu"].partition(":")  # "name (family 6, model 167: AVX2, AVX-512)"
            verdict = PASSES if passed else "**fails**"
            tried.insert(0, [f"{name})" if colon else name, live["versions"].get("openvino", "?"), verdict])
        lines += [[title, *line] for line in tried] or [[title, "–", "–", "untried"]]
    shown = Table(["Device", "Tried on", "OpenVINO", "Checks of the notebook"], lines).markdown()
    return f'{shown}\n\n`make run CASE={case} ARGS="--device GPU --record"` adds the row of your machine.'


def _result(row: Mapping) -> str:
    """What a row says of its run, with the model where that is not the small one."""
    result = row["result"] if row["result"] == PASSES else f"**fails**: {row['result']}"
    return result if row["model"] == "tiny" else f"{result} (model {row['model']})"
