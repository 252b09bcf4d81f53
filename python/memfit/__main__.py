"""`python -m memfit`."""

import sys

from memfit._cli import main

sys.exit(main())
