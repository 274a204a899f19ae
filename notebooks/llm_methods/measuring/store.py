"""Where measured rows are kept: one JSON file, written after every row, so that a run that ends early loses nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import date
from importlib import metadata
from pathlib import Path

from utils import bench
from utils.files import replaced
from utils.paths import ROOT, models_dir

STORED = ROOT / "results" / "bench" / "llm_methods-rows.json"  # of the tiny model
VERSIONS = ("openvino", "openvino-genai", "nncf")


def place(model: str = "tiny") -> Path:
    """The file of a model's rows: in results for the tiny one, among the models for every other checkpoint."""
    own = os.environ.get("CHECKPOINT")
    if model == "tiny" and not own:
        return STORED
    return models_dir() / "llm_methods" / f"{Path(own).stem if own else model}.json"


class Rows:
    """The rows of a file, by kind and name. Numbers that are missing were not measured."""

    def __init__(self, file: Path = STORED) -> None:
        self.file = file
        stored = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        self.about = {key: value for key, value in stored.items() if key != "rows"}
        self.rows = {(row["kind"], row["name"]): row for row in stored.get("rows", [])}

    def of(self, kind: str) -> list[dict]:
        """The rows of a kind, in the order in which they were first measured."""
        return [row for row in self.rows.values() if row["kind"] == kind]

    def get(self, kind: str, name: str) -> dict:
        """A row. Raises ValueError where nothing was measured."""
        if (kind, name) not in self.rows:
            raise ValueError(f"{name} was not measured. Run `make bench CASE=llm_methods`.")
        return self.rows[kind, name]

    def add(self, kind: str, name: str, fields: Mapping) -> None:
        """Put fields into a row, and write the file. A field of None removes what was there.

        `about` says where the rows were measured. A row that another processor measured has that one's name as "cpu".
        """
        row = self.rows.setdefault((kind, name), {"kind": kind, "name": name})
        row.update(fields)
        self.rows[kind, name] = {key: value for key, value in row.items() if value is not None and key != "cpu"}
        machine = bench.machine()
        if self.about.get("cpu", machine["cpu"]) == machine["cpu"]:
            self.about = {"date": date.today().isoformat(), "cpu": machine["cpu"], "cores": machine["cores"]}
            self.about |= {package: metadata.version(package) for package in VERSIONS}
        else:
            self.rows[kind, name]["cpu"] = machine["cpu"]
        with replaced(self.file) as partial:
            text = json.dumps(self.about | {"rows": list(self.rows.values())}, indent=1, ensure_ascii=False)
            partial.write_text(text + "\n", encoding="utf-8")
