"""What DEVICE may be, and the table of what was tried; devices that this machine lacks are stood in for."""

import json
import platform
from pathlib import Path

import openvino as ov
import pytest

from utils import devices, report, run, select

ROW = {
    "device": "GPU.1",
    "name": "Intel(R) Arc(TM)",
    "system": "Windows 11, AMD64",
    "openvino": "2026.4.1",
    "model": "tiny",
    "date": "2026-11-25",
    "result": "passes",
}
LIVE = {"device": "CPU", "cpu": "Xeon (family 6: AVX2)", "versions": {"openvino": "2026.4.1"}}


class Core:
    """Stands in for ov.Core on a machine with a processor, two graphics processors and an NPU."""

    available_devices = ["CPU", "GPU.0", "GPU.1", "NPU"]

    def get_property(self, device: str, name: str) -> str:
        assert name == "FULL_DEVICE_NAME"
        return {"CPU": "a processor ", "GPU": "the first graphics", "GPU.1": "the second", "NPU": "an NPU"}[device]


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr(ov, "Core", Core)
    monkeypatch.delenv("DEVICE", raising=False)


def test_a_plain_gpu_is_the_first_of_several():
    assert devices.offered(["CPU"]) == ["CPU", "AUTO"]
    assert devices.offered(["CPU", "GPU"]) == ["CPU", "GPU", "AUTO"]
    assert devices.offered(Core.available_devices) == ["CPU", "GPU", "GPU.0", "GPU.1", "NPU", "AUTO"]


@pytest.mark.parametrize("device", ["GPU", "GPU.1", "NPU", "AUTO", "CPU"])
def test_every_device_can_be_chosen(machine, monkeypatch, device):
    assert select.device(parameter=device).value == device
    monkeypatch.setenv("DEVICE", device.lower())
    assert select.device().value == device


def test_a_device_that_is_not_there_is_an_error_with_those_that_are(machine, monkeypatch):
    monkeypatch.setattr(Core, "available_devices", ["CPU"])
    monkeypatch.setenv("DEVICE", "NPU")
    with pytest.raises(ValueError, match="DEVICE says 'NPU'. Choose one of: CPU, AUTO."):
        select.device()


def test_a_row_replaces_the_earlier_one_of_the_same_machine(machine, tmp_path):
    path = devices.record("toy", "GPU", "tiny", "cell 3:\n no primitive", tmp_path)
    devices.record("toy", "NPU", "tiny", devices.PASSES, tmp_path)
    devices.record("toy", "GPU", "tiny", devices.PASSES, tmp_path)
    rows = devices.load(path)
    assert [(row["device"], row["name"], row["result"]) for row in rows] == [
        ("NPU", "an NPU", "passes"),
        ("GPU", "the first graphics", "passes"),
    ]
    devices.record("toy", "AUTO", "tiny", "cell 3:\n no primitive", tmp_path)
    assert devices.load(path)[-1]["name"] == "of CPU, GPU.0, GPU.1, NPU"
    assert devices.load(path)[-1]["result"] == "cell 3: no primitive"


def test_rows_that_were_written_by_hand_are_checked(tmp_path):
    path = tmp_path / "toy.json"
    assert devices.load(path) == []
    path.write_text(json.dumps([ROW]), encoding="utf-8")
    assert devices.load(path) == [ROW]
    for wrong in ([ROW | {"colour": "red"}], [{"device": "GPU"}], [ROW | {"result": 1}], {}):
        path.write_text(json.dumps(wrong), encoding="utf-8")
        with pytest.raises(ValueError, match="is no list of rows"):
            devices.load(path)


def test_the_table_has_a_line_for_each_run_and_each_untried_kind():
    failing = ROW | {"device": "NPU", "result": "no primitive", "model": "released"}
    lines = devices.table("toy", LIVE, True, [ROW, failing]).splitlines()
    assert lines[2:6] == [
        "| CPU | Xeon (family 6) | 2026.4.1 | passes |",
        "| Intel GPU | Intel(R) Arc(TM); Windows 11, AMD64 | 2026.4.1, 2026-11-25 | passes |",
        "| NPU | Intel(R) Arc(TM); Windows 11, AMD64 | 2026.4.1, 2026-11-25 "
        "| **fails**: no primitive (model released) |",
        "| AUTO | – | – | untried |",
    ]
    assert 'make run CASE=toy ARGS="--device GPU --record"' in lines[-1]
    assert "| CPU | Xeon (family 6) | 2026.4.1 | **fails** |" in devices.table("toy", LIVE, False, [])
    assert devices.table("toy", None, False, []).count("untried") == len(devices.KINDS)


@pytest.mark.parametrize(("name", "expected"), [("Windows", "Windows 11, AMD64"), ("Linux", "Linux, AMD64")])
def test_the_system_has_its_usual_name(monkeypatch, name, expected):
    monkeypatch.setattr(platform, "system", lambda: name)
    monkeypatch.setattr(platform, "release", lambda: "11" if name == "Windows" else "6.1.0-13-amd64")
    monkeypatch.setattr(platform, "machine", lambda: "AMD64")
    assert devices.system() == expected


def test_the_run_command_records_and_leaves_the_results(monkeypatch, tmp_path):
    recorded, standing = [], tmp_path / "toy.json"
    standing.write_text("of the CPU", encoding="utf-8")
    monkeypatch.setenv("RESULTS_DIR", str(tmp_path))
    monkeypatch.setattr(report, "add_needs", lambda *_: None)
    monkeypatch.setattr(report, "load", lambda path: {})
    monkeypatch.setattr(devices, "record", lambda *arguments: recorded.append(arguments) or tmp_path)
    monkeypatch.setattr(report, "regenerate", lambda: recorded.append("pages"))
    monkeypatch.setattr(run, "cases", lambda folder: ["toy"])

    def execute(notebook, environment, save):
        if outcomes[0] == "raises":
            raise run.CellFailed("Cell 2 failed: no primitive")
        Path(environment["RESULTS_DIR"], "toy.json").write_text("of the GPU", encoding="utf-8")

    monkeypatch.setattr(run, "execute", execute)
    monkeypatch.setattr(report, "judge", lambda results: (outcomes[0] == "passes", ["toy: accuracy is 0.7."]))
    outcomes = ["raises", "misses", "passes"]
    while outcomes:
        assert run.run("toy", device="GPU", model="tiny", record=True) == (outcomes[0] != "passes")
        del outcomes[0]
    results = ["Cell 2 failed: no primitive", "toy: accuracy is 0.7.", devices.PASSES]
    assert recorded == [x for result in results for x in (("toy", "GPU", "tiny", result), "pages")]
    assert standing.read_text(encoding="utf-8") == "of the CPU"
