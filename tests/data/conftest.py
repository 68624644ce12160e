"""What the data room's tests share."""

import sys
from pathlib import Path

# Tests are imported by path; this lets them say `from tables_by_chance import job_tables`.
sys.path.insert(0, str(Path(__file__).parent))
