"""Find OpenVINO Model Server on this machine, and start it on a repository.

It is looked for in this order: the environment variable OVMS (path of the binary), `ovms` on PATH, Docker with its
image. The image is not downloaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

IMAGE = "openvino/model_server:latest"


def find() -> list[str] | None:
    """The program that starts Model Server, [binary] or [docker]; None where there is neither.

    Raises ValueError where OVMS names no program.
    """
    if named := os.environ.get("OVMS"):
        if (binary := shutil.which(named)) is None:
            raise ValueError(f"OVMS={named} is no program. Give the path of the ovms binary, or unset OVMS.")
        return [binary]
    if binary := shutil.which("ovms"):
        return [binary]
    if (docker := shutil.which("docker")) and _succeeds([docker, "image", "inspect", IMAGE]):
        return [docker]
    return None


def command(program: list[str], folder: Path, port: int, container: str = "openvino-model-server") -> list[str]:
    """The command that serves the repository `folder` on 127.0.0.1:`port`; program: of `find`."""
    folder = Path(folder).resolve()
    if "docker" not in Path(program[0]).stem.lower():
        config = str(folder / "config.json")
        return [*program, "--config_path", config, "--rest_port", str(port), "--rest_bind_address", "127.0.0.1"]
    run = ["run", "--rm", "--name", container, "--publish", f"127.0.0.1:{port}:{port}"]
    mount = ["--volume", f"{folder}:/models:ro"]
    return [*program, *run, *mount, IMAGE, "--config_path", "/models/config.json", "--rest_port", str(port)]


def remove_container(program: list[str], container: str) -> None:
    """Remove a container that still runs after the `docker run` that started it has ended."""
    _succeeds([*program, "rm", "--force", container])


def command_lines(folder: str | Path = "models/repository", port: int = 8000) -> dict[str, str]:
    """Shell commands that serve a repository by Model Server, for each way of installing it."""
    folder = Path(folder).as_posix()
    windows = folder.replace("/", "\\")
    return {
        "Linux": f"""\
tar -xzf ovms_ubuntu24.tar.gz                 # from the project's releases
export LD_LIBRARY_PATH=$PWD/ovms/lib PATH=$PATH:$PWD/ovms/bin PYTHONPATH=$PWD/ovms/lib/python
ovms --config_path {folder}/config.json --rest_port {port} --rest_bind_address 127.0.0.1""",
        "Windows": f"""\
tar -xf ovms_windows.zip
.\\ovms\\setupvars.bat
ovms --config_path {windows}\\config.json --rest_port {port} --rest_bind_address 127.0.0.1""",
        "Docker": f"""\
docker run --rm --publish 127.0.0.1:{port}:{port} --volume "$PWD/{folder}:/models:ro" \\
    {IMAGE} --config_path /models/config.json --rest_port {port}""",
    }


def _succeeds(arguments: list[str]) -> bool:
    try:
        return subprocess.run(arguments, capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
