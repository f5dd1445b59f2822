"""``python -m flfw`` and the script ``flfw``: a command whose imports may be interrupted."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None, program: str = "") -> int:
    """Run a subcommand, as `flfw.command.program.main` does; Ctrl-C during its imports is one line, too."""
    try:
        from flfw.command.program import main as run
    except KeyboardInterrupt:
        print(f"{program or 'flfw'}: interrupted", file=sys.stderr)
        return 130
    return run(arguments, program)


if __name__ == "__main__":
    sys.exit(main())
