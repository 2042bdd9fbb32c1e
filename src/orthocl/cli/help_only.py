"""Whether this process was started to show help, and nothing else.

Importing torch takes seconds, and help needs only signatures: the modules of this package leave out the imports that
their commands need to work, but not to describe themselves, if HELP_ONLY is true.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

FLAGS = {"--help", "-h"}


def asks_for_help(line: Sequence[str]) -> bool:
    """Whether a command line, with the program in front, is that of `orthocl` and can only show help.

    >>> asks_for_help(["/usr/bin/orthocl", "run", "--help"]), asks_for_help(["/usr/bin/orthocl", "run"])
    (True, False)
    >>> asks_for_help(["somewhere/orthocl/__main__.py", "-h"]), asks_for_help(["/usr/bin/pytest", "--help"])
    (True, False)
    """
    program = Path(line[0] if line else "")
    name = program.parent.name if program.name == "__main__.py" else program.stem
    words = list(line[1:])
    return name == "orthocl" and bool(FLAGS & set(words[: words.index("--")] if "--" in words else words))


HELP_ONLY = asks_for_help(sys.argv)
