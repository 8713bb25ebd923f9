"""Entry point of the process: sets up standard streams and signals before the slow imports."""

from __future__ import annotations

import sys

from worldmodels.errors import EXIT_STOPPED
from worldmodels.system import interrupts, streams


def main() -> int:
    """Run the command line; returns an exit code of `worldmodels.errors`."""
    streams.open_closed()
    interrupts.install()
    code = 1
    try:
        from worldmodels.command_line import command

        code = command()
    except KeyboardInterrupt:
        streams.print_error("interrupted: the same command continues from the last checkpoint")
        code = EXIT_STOPPED
    finally:
        written = streams.flush_output()
    return code if written or code else 1


if __name__ == "__main__":
    sys.exit(main())
