"""Prints the dependencies in pyproject.toml, with those of the extras named on the command line, one a line.

    python cmake/requirements.py export dev

For installing them before the package itself is built. Python 3.10 has no TOML reader, but pip carries one.
"""

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
print(*project["dependencies"], sep="\n")
for extra in sys.argv[1:]:
    print(*project["optional-dependencies"][extra], sep="\n")
