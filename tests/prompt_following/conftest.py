"""Puts the folder of the story example into the search path of the tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "hierarchical_story"))
