"""Model, device and precision of a notebook: environment variable, else papermill parameter, else a widget.

model = select.model(["tiny", "released"])
model          # at the end of a cell: the drop-down list
model.value    # in later cells: "tiny"
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from utils import devices


@dataclass(frozen=True, repr=False)
class Choice:
    """A value that is already decided, and by what. Displays as text."""

    name: str
    value: str
    decided_by: str

    def __repr__(self) -> str:
        return f"{self.name}: {self.value} ({self.decided_by})"


def model(options: Sequence[str], default: str = "tiny", parameter: str | None = None):
    """Which checkpoint: decided by MODEL, else `parameter`, else a list (in a kernel) or the default."""
    return _select("MODEL", options, default, parameter)


def device(options: Sequence[str] | None = None, default: str = "CPU", parameter: str | None = None):
    """Where to run: decided by DEVICE, else `parameter`, else a list of those here (`devices.offered`)."""
    if options is None:
        import openvino as ov

        options = devices.offered(ov.Core().available_devices)
    return _select("DEVICE", options, default, parameter)


def precision(options: Sequence[str], default: str, parameter: str | None = None):
    """Which weights, such as INT8: decided by PRECISION, else `parameter`, else a list or the default."""
    return _select("PRECISION", options, default, parameter)


def _select(variable: str, options: Sequence[str], default: str, parameter: str | None):
    """A Dropdown widget or a Choice, both with `.value`. Raises ValueError for a value that is no option."""
    name, options = variable.lower(), list(options)
    default = _known(default, options, f"the default {name}")
    if value := os.environ.get(variable):
        return Choice(name, _known(value, options, f"the environment variable {variable}"), f"from {variable}")
    if parameter:
        return Choice(name, _known(parameter, options, f"the parameter {name}"), "from the parameter")
    if not _in_kernel():
        return Choice(name, default, "default")
    import ipywidgets

    return ipywidgets.Dropdown(options=options, value=default, description=f"{name.capitalize()}:")


def _known(value: str, options: list[str], where: str) -> str:
    for option in options:
        if option.lower() == value.lower():
            return option
    raise ValueError(f"{where[0].upper()}{where[1:]} says {value!r}. Choose one of: {', '.join(options)}.")


def _in_kernel() -> bool:
    """Whether a notebook front end may show widgets (a terminal's IPython shell has no kernel)."""
    ipython = sys.modules.get("IPython")  # a kernel has it loaded
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")
