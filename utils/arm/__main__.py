"""`python -m utils.arm [NAME ...]` runs converted models on an emulated ARM processor.

The results go to results/bench/emulated-arm.json. The models are those that the notebooks' READMEs ask for with
`results:arm`. Each model runs here in f32, and with the same inputs on the emulated processor in f32 and f16. Emulation
shows whether the results are right; it says nothing about time.
"""

import argparse
import sys
import tempfile
from itertools import chain
from pathlib import Path

from utils import command, paths, report
from utils.arm import sweep
from utils.setup import emulator


def main(names: list[str]) -> None:
    """Compare the models and write the results. Raises ValueError where the emulator cannot be had, and for names that
    no README asks for."""
    known = report.on_arm()
    wanted = {name for name in known if not names or name.startswith(tuple(names))}
    if not wanted:
        raise ValueError(f"No README asks for {', '.join(names)}. There are: {', '.join(sorted(known))}.")
    home = paths.models_dir() / "arm"
    print("arm: preparing the emulator ...", flush=True)
    program = emulator.prepare(home)
    version = emulator.version(home)
    ir, found = paths.models_dir() / "ir", set()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        smallest = [(f"smallest/{name}", path) for name, path in sweep.smallest(folder).items() if "smallest" in wanted]
        for name, path in chain(smallest, sweep.graphs(folder, wanted), sweep.conversions(ir, wanted)):
            found.add(name.partition("/")[0])
            try:
                row = sweep.compare(path, program)
            except (ValueError, RuntimeError) as error:
                entry = {"result": "untried", "error": sweep.last_line(str(error))}
                row = dict.fromkeys(sweep.PRECISIONS, entry)
            sweep.update(report.ARM, {name: row}, version)
            print(f"arm: {name}: {', '.join(sweep.text(row))}", flush=True)
    for name in sorted(wanted - found):
        print(f"arm: {name} is not converted here. Run the notebooks whose READMEs name it.", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m utils.arm", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="beginnings of names in the READMEs, such as dien; without any, all")
    sys.exit(command.run(main, parser.parse_args().names))
