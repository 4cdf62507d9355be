"""``python -m memalpha`` and ``accelerate launch -m memalpha``."""

from memalpha.cli import main

if __name__ == "__main__":
    main()
