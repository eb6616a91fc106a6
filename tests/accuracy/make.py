#!/usr/bin/env python3
"""Makes docs/accuracy.md, docs/zh/accuracy.md and the table of residuals from the measured runs.

python3 dev.py accuracy           errors may only fall: ceilings are lowered, never raised
python3 dev.py accuracy --raise   take the errors of now as the new ceilings
"""

from __future__ import annotations

import sys
from pathlib import Path

import tomli


sys.path.insert(0, str(Path(__file__).parent))

from measure import measure, numbers, predict_all
from page import pages

from autopar_core.cli.session import load_plugins
from autopar_core.config import bands
from autopar_core.config.catalogue import shipped
from autopar_core.validate.residuals import as_toml


ROOT = Path(__file__).resolve().parents[2]
CEILINGS = Path(__file__).parent / "ceilings.toml"
HEAD = """\
# Errors, percent, that a later version must not exceed. `python3 dev.py accuracy` writes and only lowers
# them; `--raise` takes those of now.
"""


def ceilings() -> dict[str, dict[str, float]]:
    """Line -> statistic -> largest error."""
    return tomli.loads(CEILINGS.read_text(encoding="utf-8")) if CEILINGS.exists() else {}


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--raise"]):
        sys.stderr.write(__doc__ or "")
        return 2
    plugins = load_plugins()
    answer = predict_all(plugins)
    shipped("residuals.toml").write_text(as_toml(answer), encoding="utf-8")
    bands.residuals.cache_clear()
    found = measure(plugins, answer)
    for name, text in pages(found).items():
        (ROOT / "docs" / name).write_text(text, encoding="utf-8")
    old = {} if arguments else ceilings()
    made = [HEAD]
    for line, values in numbers(found).items():
        made.append(f'["{line}"]')
        for name, value in values.items():
            most = min(value, old.get(line, {}).get(name, value))
            made.append(f'"{name}" = {most:.3f}')
        made.append("")
    CEILINGS.write_text("\n".join(made), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
