"""`python -m ntk_equiv`, the same as `ntk-equiv`."""

import sys

from ntk_equiv.cli import main

if __name__ == "__main__":
    sys.exit(main())
