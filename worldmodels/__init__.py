"""World Models (Ha & Schmidhuber, 2018): VAE encoder, MDN-RNN dynamics model, CMA-ES controller."""

import os

from worldmodels.threads import share_cores

__version__ = "0.1.0"

share_cores(os.environ)
