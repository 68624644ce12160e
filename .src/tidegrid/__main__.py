"""``python -m tidegrid``: the command line."""

from tidegrid.app.cli import main

if __name__ == "__main__":
    main()
