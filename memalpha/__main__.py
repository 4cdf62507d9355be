"""``python -m memalpha`` and ``accelerate launch -m memalpha``."""

import os
import signal

if "MEMALPHA_LAUNCHED" in os.environ:  # Ctrl-C before training begins: ``launch`` says so, once
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from memalpha.cli import main

if __name__ == "__main__":
    main()
