"""The command line: ``tidegrid``, or ``python -m tidegrid``."""

import sys


def main() -> None:
    """Run the command line; an interrupt while it is still loading is one line too."""
    try:
        from tidegrid.app.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("tidegrid: interrupted; nothing was left half-written\n")
        raise SystemExit(130) from None
    run()


if __name__ == "__main__":
    main()
