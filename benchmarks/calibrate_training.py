"""Reproduce the shipped calibration of the training predictor from published timings.

python benchmarks/calibrate_training.py ../shared/data/timings/training_runs.csv
python benchmarks/calibrate_training.py FILE --out estimators/training/calibration.json
"""

import argparse
import json
import sys
from pathlib import Path

from tidegrid.errors import TidegridError
from tidegrid.estimators.training import calibration, physics, timings
from tidegrid.files import write_text


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="published timings (see estimators/training/timings.py)")
    parser.add_argument("--out", type=Path, help="write the calibration here; without it, it is only shown")
    args = parser.parse_args()
    table = timings.read(args.file)
    result = calibration.calibrate(table)
    print(f"{'constant':18} {'start':>10} {'fitted':>10}  moved")
    for name, value in result.constants.items():
        start = physics.CONSTANTS[name].start
        print(f"{name:18} {start:10.4g} {value:10.4g}  ×{value / start:.2f}")
    print("scale of the prior's band:", {k: round(v, 3) for k, v in result.scale.items()})
    print(f"{sum(result.sources.values())} rows of {len(result.sources)} sources")
    if args.out is not None:
        rounded = json.loads(
            json.dumps(result.to_dict()), parse_float=lambda text: float(f"{float(text):.6g}")
        )
        write_text(args.out, json.dumps(rounded, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TidegridError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
